"""How much each slot explores: from one that tries much to one that does almost always what it thinks best."""

from __future__ import annotations


def epsilon_ladder(slots: int, epsilon: float = 0.4, power: float = 7.0) -> tuple[float, ...]:
    """One epsilon per slot: epsilon^(1 + power * i / (slots - 1)), which is Ape-X's.

    They stay the same for the whole run. The first slot explores the most; a single slot is the first.

    Args:
        slots: how many there are.
        epsilon: of the first.
        power: how much greedier the last one is; 0 makes them all alike.

    Example:
        >>> [round(value, 4) for value in epsilon_ladder(4)]
        [0.4, 0.0472, 0.0056, 0.0007]
        >>> epsilon_ladder(3, epsilon=0.1, power=0.0)
        (0.1, 0.1, 0.1)
    """
    return tuple(epsilon ** (1 + power * i / max(1, slots - 1)) for i in range(slots))


def greediest(slots: int) -> range:
    """The third of the slots that explore the least, at least one of them.

    The mean over all slots would tell how well the policy plays while it is disturbed on purpose.

    Example:
        >>> greediest(8), greediest(1)
        (range(5, 8), range(0, 1))
    """
    return range(slots - (slots + 2) // 3, slots)
