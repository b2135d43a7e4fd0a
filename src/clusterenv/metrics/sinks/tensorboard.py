"""TensorBoard event files."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from clusterenv import extras

if TYPE_CHECKING:
    from collections.abc import Mapping


class TensorBoardSink:
    """Writes scalars against `global_step`, and the configuration as the text "hyperparameters", as CleanRL does.

    Args:
        folder: where the event files go.
        hyperparameters: shown as a table.

    Raises:
        ConfigError: torch or tensorboard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], hyperparameters: Mapping[str, object] | None = None) -> None:
        module = extras.load("torch.utils.tensorboard", extra="train", purpose="the TensorBoard sink")
        self._writer: Any = module.SummaryWriter(os.fspath(folder))
        self._began = time.time()
        if hyperparameters:
            rows = "\n".join(f"|{name}|{value}|" for name, value in hyperparameters.items())
            self._writer.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}")

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        """Add a scalar per value, at the wall time that `seconds` means."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, global_step, walltime=self._began + seconds)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
