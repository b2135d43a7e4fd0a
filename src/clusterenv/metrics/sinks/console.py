"""One line of text every few seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from clusterenv.metrics.headline import Headline

if TYPE_CHECKING:
    from collections.abc import Mapping


class ConsoleSink:
    r"""Writes the headline to a stream, at most once per `every_s` seconds of the run's own time.

    Example:
        >>> import io
        >>> stream = io.StringIO()
        >>> sink = ConsoleSink(stream)
        >>> sink.write({"charts/episodic_return": 21.5}, 128, 0.5)
        >>> stream.getvalue()
        ' 128 steps | return 21.5\n'
    """

    def __init__(self, stream: TextIO, every_s: float = 10.0) -> None:
        self.stream, self.every_s = stream, every_s
        self.headline = Headline()
        self._written_at: float | None = None

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        """Take the values, and write a line if it is time."""
        self.headline.take(values, global_step, seconds)
        if self._written_at is None or seconds - self._written_at >= self.every_s:
            self._line(seconds)

    def close(self) -> None:
        """Write the last line, if something came after the one before it. The stream stays open: it is not ours."""
        if self._written_at is not None and self._written_at < self.headline.seconds:
            self._line(self.headline.seconds)

    def _line(self, seconds: float) -> None:
        self._written_at = seconds
        self.stream.write(f" {self.headline.line()}\n")
        self.stream.flush()
