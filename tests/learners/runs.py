"""What tests of whole runs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Notebook:
    """A sink that remembers, and may break off."""

    def __init__(self, break_after: int | None = None) -> None:
        self.rows: list[dict[str, float]] = []
        self.break_after = break_after

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        self.rows.append({**values, "global_step": global_step})
        if len(self.rows) == self.break_after:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass
