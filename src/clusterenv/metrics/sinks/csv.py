"""metrics.csv: one row per number, so that a new metric needs no new column.

    seconds,global_step,key,value
    1.532,4096,charts/SPS,2671.9

It is easy to grep, and a run that goes on after a crash goes on in the same file.
"""

from __future__ import annotations

import csv
import os
import pathlib
from typing import TYPE_CHECKING

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COLUMNS = ("seconds", "global_step", "key", "value")


class CsvSink:
    """Appends to a file; every `write` reaches the operating system.

    Args:
        path: the file. If it exists, rows are added.
        resume_at: rows after this global step are dropped first: the run that goes on will write them anew.
    """

    def __init__(self, path: str | os.PathLike[str], *, resume_at: int | None = None) -> None:
        self.path = pathlib.Path(path)
        if self.path.exists():
            _repair(self.path, resume_at)
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        self._file = self.path.open("a", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file, lineterminator="\n")
        if fresh:
            self._rows.writerow(COLUMNS)
            self._file.flush()

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        """Add a row per value."""
        self._rows.writerows((f"{seconds:.3f}", global_step, name, f"{value:.9g}") for name, value in values.items())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: str | os.PathLike[str]) -> Iterator[tuple[float, int, str, float]]:
    """The rows of a file: (seconds, global_step, key, value). A row that was cut off by a crash is left out.

    Raises:
        ConfigError: the file is not ours.
    """
    # Half characters become marks, and the row with them is refused for what else is wrong with it, or kept.
    with open(path, newline="", encoding="utf-8", errors="replace") as file:
        if file.readline().rstrip("\n") != ",".join(COLUMNS):
            raise ConfigError(f"{os.fspath(path)} does not begin with {','.join(COLUMNS)!r}: it is no metrics file.")
        for number, line in enumerate(file, 2):
            if line.endswith("\n"):
                yield _row(line, f"{os.fspath(path)}, line {number}")


def _row(line: str, where: str) -> tuple[float, int, str, float]:
    try:
        seconds, global_step, key, value = next(csv.reader([line]))
        return float(seconds), int(global_step), key, float(value)
    except (ValueError, StopIteration, csv.Error):
        raise ConfigError(f"{where}: {line[:80]!r} is no row of {', '.join(COLUMNS)}.") from None


def _repair(path: pathlib.Path, resume_at: int | None) -> None:
    """Drop a last row that was cut off, and the rows after `resume_at`. Written aside, then put in place."""
    if path.stat().st_size == 0:
        return
    kept = [row for row in read(path) if resume_at is None or row[1] <= resume_at]
    aside = path.with_name(f"{path.name}.new")
    with aside.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows((f"{seconds:.3f}", step, key, f"{value:.9g}") for seconds, step, key, value in kept)
    os.replace(aside, path)
