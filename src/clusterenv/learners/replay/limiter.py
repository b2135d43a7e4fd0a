"""How often a memory is learned from for each step that goes into it, whatever the speed of either side."""

from __future__ import annotations

from clusterenv.learners.common.config import check


class RateLimiter:
    """Decides whether the next thing may be an insertion or a sample.

    With it, results do not depend on how fast the machine plays and learns: whoever is ahead waits.

    Args:
        samples_per_insert: how often each item is sampled, on average.
        start: items to insert before the first sample.
        slack: how many samples the sampling may be behind before insertions wait. Give at least what one insertion
            and one sample bring, or both sides wait for each other at every turn.

    Example:
        >>> limiter = RateLimiter(samples_per_insert=2.0, start=10, slack=8)
        >>> limiter.may_sample(4)
        False
        >>> limiter.inserted(12)
        >>> limiter.may_sample(4), limiter.may_insert
        (True, True)
        >>> limiter.sampled(4)
        >>> limiter.may_sample(4)
        False
    """

    def __init__(self, samples_per_insert: float, start: int, slack: float) -> None:
        check("samples_per_insert", samples_per_insert, above=0)
        check("start", start, least=0)
        check("slack", slack, above=0)
        self.samples_per_insert, self.start, self.slack = samples_per_insert, start, slack
        self.inserts, self.samples = 0, 0

    @property
    def allowed(self) -> float:
        """Samples that the insertions so far allow."""
        return self.samples_per_insert * max(0, self.inserts - self.start)

    @property
    def ratio(self) -> float:
        """Samples for each insertion after the first ones, so far; 0 before."""
        return self.samples / max(1, self.inserts - self.start)

    @property
    def may_insert(self) -> bool:
        """Whether the sampling is near enough behind."""
        return self.inserts < self.start or self.allowed - self.samples < self.slack

    def may_sample(self, count: int) -> bool:
        """Whether enough was inserted for so many more samples."""
        return self.inserts >= self.start and self.samples + count <= self.allowed

    def inserted(self, count: int) -> None:
        """Count items that went in."""
        self.inserts += count

    def sampled(self, count: int) -> None:
        """Count items that came out."""
        self.samples += count

    def resume(self, items: int) -> None:
        """Go on with a memory that has so many items already, each of which was sampled as often as it should be."""
        self.inserts = items
        self.samples = int(self.allowed)
