"""Versions of a policy: which is newer, how far one lags behind another, and that none ever goes back."""

from __future__ import annotations

from typing import NamedTuple

from clusterenv.errors import WeightsCorrupt


class Version(NamedTuple):
    """A version of the policy. Later ones compare greater, across epochs too.

    Attributes:
        epoch: grows when a head starts anew, so that numbers of an earlier head never look newer.
        number: grows by one with every publish of weights that have changed.

    Example:
        >>> Version(0, 7).next()
        Version(epoch=0, number=8)
        >>> Version(0, 7) < Version(1, 0)
        True
    """

    epoch: int
    number: int

    def next(self) -> Version:
        """The version after this one."""
        return Version(self.epoch, self.number + 1)

    def lag(self, newest: Version) -> int:
        """How many versions this one is behind `newest`, a version of the same epoch."""
        return newest.number - self.number

    def __str__(self) -> str:
        return f"{self.epoch}.{self.number}"


def check_forward(held: Version | None, offered: Version) -> Version:
    """Return `offered` if it is newer than `held`, or the same; a version never goes back.

    Example:
        >>> check_forward(Version(0, 3), Version(0, 5))
        Version(epoch=0, number=5)
    """
    if held is not None and offered < held:
        raise WeightsCorrupt(
            f"version {offered} was offered to a holder of version {held}, and versions never go back. "
            "Drop the message: it is late."
        )
    return offered
