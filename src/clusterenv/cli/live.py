"""What a person sees while a run goes on: a live view on a terminal, a JSON line for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clusterenv.cli.json_lines import json_line
from clusterenv.metrics import keys
from clusterenv.metrics.headline import SHORT_S, Headline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console, RenderableType


class LiveSink:
    """A few lines that stay in place: how far, how good, how fast, how fresh.

    Args:
        console: where.
        title: the first line.
        total_steps: the step budget.
    """

    def __init__(self, console: Console, title: str, total_steps: int) -> None:
        self.headline = Headline()
        self._title, self._total = title, total_steps
        self._live = Live(self._view(), console=console, refresh_per_second=4, transient=False)
        self._live.start()

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        """Take the values of one moment and show them."""
        self.headline.take(values, global_step, seconds)
        self._live.update(self._view())

    def close(self) -> None:
        """Leave the last view on the screen."""
        self._live.stop()

    def _view(self) -> RenderableType:
        headline = self.headline
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=self._total, completed=min(headline.global_step, self._total), width=40),
            f"{headline.global_step:,} of {self._total:,} steps",
            f"{clock(headline.seconds)} passed",
            self._left(),
        )
        table = Table.grid(padding=(0, 2))
        for label, text in {**headline.fields(), **self._more()}.items():
            table.add_row(Text(label, style="dim"), text)
        return Group(Text(self._title, style="bold"), bar, table)

    def _left(self) -> str:
        rate = self.headline.steps_per_second(SHORT_S)
        return f"{clock((self._total - self.headline.global_step) / rate)} left" if rate else ""

    def _more(self) -> dict[str, str]:
        forms = {
            "episode length": (keys.EPISODIC_LENGTH, "{:.0f}"),
            "entropy": (keys.ENTROPY, "{:.3f}"),
            "approx. KL": (keys.APPROX_KL, "{:.4f}"),
            "explained variance": (keys.EXPLAINED_VARIANCE, "{:.2f}"),
            "divergence": (keys.DIVERGENCE_MAX, "{:.4f} at most"),
            "publish to apply": (keys.PUBLISH_TO_APPLY_P50, "{:,.0f} ms"),
            "worker wait": (keys.WORKER_WAIT, "{:.0%}"),
            "slowest worker": (keys.STRAGGLER_RATIO, "{:.1f} times the step of the one in the middle"),
            "restarts": (keys.RESTARTS, "{:.0f}"),
        }
        known = {label: (self.headline.get(metric), form) for label, (metric, form) in forms.items()}
        return {label: form.format(value) for label, (value, form) in known.items() if value is not None}


class JsonSink:
    """One JSON object per update: `global_step`, `seconds` and the metrics."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        """Write a line."""
        line = {"global_step": global_step, "seconds": round(seconds, 3), **values}
        self._stream.write(json_line(line) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Nothing is left to write."""


def clock(seconds: float) -> str:
    """Seconds as a clock shows them.

    Example:
        >>> clock(75), clock(3675)
        ('1:15', '1:01:15')
    """
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
