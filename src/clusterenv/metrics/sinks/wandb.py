"""Weights & Biases. Nothing leaves the machine unless this sink is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv import extras

if TYPE_CHECKING:
    from collections.abc import Mapping


class WandbSink:
    """Logs to Weights & Biases, against `global_step`, with the seconds beside it.

    Args:
        project: its name there.
        name: of the run.
        hyperparameters: the run's configuration.
        folder: where the library keeps its own files.

    Raises:
        ConfigError: wandb is not installed.
    """

    def __init__(
        self, project: str, name: str, hyperparameters: Mapping[str, object] | None = None, folder: str | None = None
    ) -> None:
        wandb = extras.load("wandb", extra="wandb", purpose="Weights & Biases (--track)")
        self._run: Any = wandb.init(project=project, name=name, config=dict(hyperparameters or {}), dir=folder)
        self._run.define_metric("*", step_metric="global_step")

    def write(self, values: Mapping[str, float], global_step: int, seconds: float) -> None:
        """Log the values of one moment."""
        self._run.log({**values, "global_step": global_step, "seconds": seconds})

    def close(self) -> None:
        """Finish the run there."""
        self._run.finish()
