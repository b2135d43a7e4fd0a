"""The few numbers that people look at while a run goes on, as one line of text.

Pure: time comes in with the values. The console sink and the live view of the command line both show it.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from clusterenv.metrics import keys

if TYPE_CHECKING:
    from collections.abc import Mapping

SHORT_S, LONG_S = 10.0, 60.0


class Headline:
    """Keeps the newest value of each metric and the rates over the last 10 and 60 seconds.

    Example:
        >>> headline = Headline()
        >>> headline.take({"charts/episodic_return": 187.3}, 0, 0.0)
        >>> headline.take({"cluster/workers_ready": 15, "cluster/workers": 16}, 1_204_224, 29.25)
        >>> headline.line()
        '1,204,224 steps | SPS 41.2k (10s) 41.2k (60s) | return 187.3 | workers 15/16'
    """

    def __init__(self) -> None:
        self.global_step, self.seconds = 0, 0.0
        self.latest: dict[str, float] = {}
        self._syncs = 0.0
        # (seconds, steps, syncs) of the last minute, oldest first.
        self._moments: deque[tuple[float, int, float]] = deque()

    def take(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        """Take the values of one moment."""
        self.latest.update(values)
        self.global_step, self.seconds = global_step, seconds
        self._syncs += values.get(keys.SYNC_COUNT.name, 0.0)
        self._moments.append((seconds, global_step, self._syncs))
        # One moment older than a minute stays, so that the rate spans the whole minute.
        while len(self._moments) > 2 and self._moments[1][0] <= seconds - LONG_S:
            self._moments.popleft()

    def get(self, metric: keys.Metric) -> float | None:
        """The newest value of a metric, or None if there is none yet."""
        value = self.latest.get(metric.name)
        return None if value is None or math.isnan(value) else value

    def steps_per_second(self, window_s: float) -> float | None:
        """Steps per second over the last `window_s` seconds."""
        return self._rate(1, window_s)

    def syncs_per_minute(self) -> float | None:
        """Syncs per minute over the last minute."""
        rate = self._rate(2, LONG_S)
        return None if rate is None else rate * 60.0

    def fields(self) -> dict[str, str]:
        """What the line is made of: a label and a text each, only what is known."""
        texts = {
            "SPS": self._sps_text(),
            "return": self._text(keys.EPISODIC_RETURN, "{:.1f}"),
            "workers": self._workers_text(),
            "lag": self._lag_text(),
            "sync": self._sync_text(),
            "learner wait": self._text(keys.LEARNER_WAIT, "{:.0%}"),
        }
        return {label: text for label, text in texts.items() if text}

    def line(self) -> str:
        """All of it in one line."""
        return " | ".join(
            [f"{self.global_step:,} steps", *(f"{label} {text}" for label, text in self.fields().items())]
        )

    def _rate(self, column: int, window_s: float) -> float | None:
        newest = self._moments[-1] if self._moments else None
        if newest is None:
            return None
        older = [moment for moment in self._moments if moment[0] <= newest[0] - window_s]
        start = older[-1] if older else self._moments[0]
        passed = newest[0] - start[0]
        return (newest[column] - start[column]) / passed if passed > 0 else None

    def _sps_text(self) -> str:
        short, long = self.steps_per_second(SHORT_S), self.steps_per_second(LONG_S)
        if short is None or long is None:  # the first moment: all that is known is what it says of itself
            told = self.get(keys.SPS)
            return "" if told is None else thousands(told)
        return f"{thousands(short)} (10s) {thousands(long)} (60s)"

    def _workers_text(self) -> str:
        ready, asked = self.get(keys.WORKERS_READY), self.get(keys.WORKERS)
        return "" if ready is None or asked is None else f"{ready:.0f}/{asked:.0f}"

    def _lag_text(self) -> str:
        low, mean, high = map(self.get, (keys.POLICY_LAG_MIN, keys.POLICY_LAG_MEAN, keys.POLICY_LAG_MAX))
        return "" if low is None or mean is None or high is None else f"{low:.0f}/{mean:.1f}/{high:.0f}"

    def _sync_text(self) -> str:
        rate, saved = self.syncs_per_minute(), self.get(keys.SYNC_SAVED)
        if rate is None or self.get(keys.SYNC_COUNT) is None:
            return ""
        if saved is None:
            return f"{rate:.0f}/min"
        return f"{rate:.0f}/min ({saved:.0%} saved)" if saved >= 0 else f"{rate:.0f}/min ({-saved:.0%} more)"

    def _text(self, metric: keys.Metric, form: str) -> str:
        value = self.get(metric)
        return "" if value is None else form.format(value)


def thousands(value: float) -> str:
    """A rate in few characters.

    Example:
        >>> thousands(950), thousands(41_234), thousands(1_204_224)
        ('950', '41.2k', '1.20M')
    """
    if value < 1_000:
        return f"{value:.0f}"
    return f"{value / 1e3:.1f}k" if value < 1e6 else f"{value / 1e6:.2f}M"
