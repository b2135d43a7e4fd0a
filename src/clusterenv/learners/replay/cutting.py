"""How an episode is cut into sequences."""

from __future__ import annotations

from typing import NamedTuple


class Cutting(NamedTuple):
    """The measures of sequences.

    Attributes:
        length: steps that are learned from.
        burn_in: steps before those, which only bring a recurrent state up to date.
        overlap: steps that a sequence shares with the one before.
    """

    length: int
    burn_in: int
    overlap: int

    @property
    def stride(self) -> int:
        """Steps from the start of a sequence to the start of the next."""
        return self.length - self.overlap

    def origin(self, begin: int, seen: bool) -> int:
        """Where the first sequence of an episode starts.

        Args:
            begin: its first step that is known.
            seen: that is its very first one, before which the state is zero. If not, the first steps make a burn-in,
                so that every burn-in that is shorter than others begins with the episode.
        """
        return begin if seen else begin + self.burn_in

    def complete(self, origin: int, start: int, stop: int, ended: bool) -> list[int]:
        """The starts of the sequences that are complete, now that an episode has come so far.

        All have the full length but the last of an episode, which holds what no other does.

        Args:
            origin: where the first sequence of the episode starts.
            start: where the first starts that was not complete before.
            stop: the step after the last one that is known.
            ended: that was the last of the episode.

        Example:
            >>> cutting = Cutting(length=80, burn_in=40, overlap=40)
            >>> cutting.complete(origin=0, start=0, stop=130, ended=False)
            [0, 40]
            >>> cutting.complete(origin=0, start=80, stop=140, ended=True)
            [80]
        """
        starts = list(range(start, stop - self.length + 1, self.stride))
        start += len(starts) * self.stride
        held = start + self.overlap if start > origin else origin
        return [*starts, start] if ended and held < stop else starts
