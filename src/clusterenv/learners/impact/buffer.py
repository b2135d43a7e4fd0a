"""The circular buffer of IMPACT: the newest batches, each of which may be used so many times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

Item = TypeVar("Item")


@dataclass(slots=True)
class Kept(Generic[Item]):
    """A batch in the buffer.

    Attributes:
        item: the batch.
        uses: how often it was used.
    """

    item: Item
    uses: int = 0


class CircularBuffer(Generic[Item]):
    """At most `batches` of them; one leaves after it was used `uses` times, or when a newer one needs its place.

    Args:
        batches: how many.
        uses: how often each.

    Attributes:
        kept: what is in it, oldest first.
        dropped_uses: uses that were left in batches that had to leave.

    Example:
        >>> buffer = CircularBuffer(batches=2, uses=1)
        >>> buffer.add("a")
        >>> buffer.take(torch.Generator()).item, len(buffer)
        ('a', 0)
    """

    def __init__(self, batches: int, uses: int) -> None:
        self._batches, self._uses = batches, uses
        self.kept: list[Kept[Item]] = []
        self.dropped_uses = 0

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, item: Item) -> None:
        """Take in a new one; if all places are taken, the oldest leaves, however often it was used."""
        if len(self.kept) == self._batches:
            self.dropped_uses += self._uses - self.kept.pop(0).uses
        self.kept.append(Kept(item))

    def take(self, source: torch.Generator) -> Kept[Item]:
        """Use one that is drawn at random: each with a chance by the uses that it has left.

        Raises:
            LookupError: it is empty.
        """
        if not self.kept:
            raise LookupError("the buffer is empty: every batch has been used as often as it may. Add one first.")
        left = torch.tensor([self._uses - kept.uses for kept in self.kept], dtype=torch.float32)
        return self.use(int(torch.multinomial(left, 1, generator=source)))

    def use(self, index: int) -> Kept[Item]:
        """Use the one at this place, counted from the oldest."""
        kept = self.kept[index]
        kept.uses += 1
        if kept.uses == self._uses:
            del self.kept[index]
        return kept
