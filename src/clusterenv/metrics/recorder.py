"""The recorder: takes numbers at a moment and hands them to every sink."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

from clusterenv.metrics import keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Sink(Protocol):
    """A place where numbers go."""

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        """Take the values of one moment: after `global_step` steps and `seconds` since the start."""

    def close(self) -> None:
        """Write what is left and let go."""


class Recorder:
    """Hands numbers to sinks. Names must be known to `metrics.keys`, so that a slip is no new curve.

    Example:
        >>> class Latest:
        ...     def write(self, values, global_step, seconds):
        ...         self.values = dict(values)
        ...     def close(self):
        ...         pass
        >>> latest = Latest()
        >>> with Recorder([latest]) as recorder:
        ...     recorder.record({"charts/SPS": 5000.0}, global_step=128, seconds=1.5)
        >>> latest.values
        {'charts/SPS': 5000.0}
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self.sinks = list(sinks)

    def record(self, values: Mapping[str, float], *, global_step: int, seconds: float) -> None:
        """Hand the values of one moment to every sink.

        Raises:
            ConfigError: a name is not in `metrics.keys`; no sink got anything.
        """
        numbers = {keys.find(name).name: float(value) for name, value in values.items()}
        for sink in self.sinks:
            sink.write(numbers, global_step, seconds)

    def close(self) -> None:
        """Close every sink, also when one of them fails."""
        sinks, self.sinks = self.sinks, []
        with ExitStack() as stack:
            for sink in reversed(sinks):
                stack.callback(sink.close)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
