"""What one batch does to a network: the part of a learner that knows no environments."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from clusterenv.errors import ConfigError
from clusterenv.learners.common import checkpoint
from clusterenv.learners.common.recorded import Recorded, recorded

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Mapping

    from torch import nn

    from clusterenv.env.batch import Batch
    from clusterenv.learners.common.config import LearnerConfig
    from clusterenv.learners.common.recorded import Step

Config = TypeVar("Config", bound="LearnerConfig")
Net = TypeVar("Net", bound="nn.Module")


class Updater(abc.ABC, Generic[Config, Net]):
    """A network, its optimiser, and the rule by which they learn.

    Args:
        config: the settings.
        network: fresh, with its first weights.
        optimizer: of its parameters.
        acting: the policy that the workers act with; None if it is the network itself.

    Attributes:
        takes_tensors: whether batches are to come as tensors on the learner's device, or as the arrays they are. What
            goes into a memory first should not go to a device.
        every_state: whether the workers are to record the recurrent state before every step, as `Batch.states`.
        learned: whether the last `update` changed the network; one with a memory may only have put something in.
    """

    takes_tensors: ClassVar[bool] = True
    every_state: bool = False
    learned: bool = True

    def __init__(
        self, config: Config, network: Net, optimizer: torch.optim.Optimizer, acting: nn.Module | None = None
    ) -> None:
        self.config, self.network, self.optimizer = config, network, optimizer
        self._acting: nn.Module = network if acting is None else acting
        self._recorded: list[Recorded] = []

    def best_step(self, step: Step) -> Step:
        """A gradient step as it is best done on the learner's device: on a GPU as a CUDA graph, if settings allow it.

        It takes trees of tensors and returns one, reads no number back, and changes in place what it changes.
        """
        best = recorded(step, self.optimizer, self.config.device, self.config.cuda_graphs)
        if isinstance(best, Recorded):
            self._recorded.append(best)
        return best

    @property
    def is_recordable(self) -> bool:
        """Whether gradient steps may be played back: each further shape of their inputs costs a recording."""
        return any(step.is_recordable for step in self._recorded)

    @property
    def acting(self) -> nn.Module:
        """The policy that the workers shall act with: one and the same module for as long as this learns."""
        return self._acting

    @property
    def judged(self) -> nn.Module:
        """The policy that an evaluation plays: the same, less what it does only to explore."""
        return self.acting

    @property
    def needs_batch(self) -> bool:
        """Whether it can only go on with a new batch; one that keeps old batches may be able to without."""
        return True

    @property
    def takes_batch(self) -> bool:
        """Whether it has a use for a new batch that is there already."""
        return True

    @property
    def takes_more(self) -> int:
        """How many further batches `keep` shall be given before an update, if they are there already."""
        return 0

    def keep(self, batch: Batch) -> None:
        """Put a batch aside, to learn from it in later updates. Asked for by `takes_more` alone."""
        raise NotImplementedError(f"{type(self).__name__} takes batches only one at a time, with an update.")

    @abc.abstractmethod
    def update(self, batch: Batch | None, left: float, publish: Callable[[], None]) -> dict[str, float]:
        """Learn, and return the metrics.

        Args:
            batch: a new one, as `takes_tensors` says; None if there is none and none is needed.
            left: the share of the step budget that is left.
            publish: to be called when `acting` has changed and the workers shall know.
        """

    def anneal(self, left: float) -> float:
        """Set the learning rate for this share of the budget, and return by what it was multiplied."""
        left = left if self.config.anneal else 1.0
        for group in self.optimizer.param_groups:
            rate = group.get("initial_lr", self.config.learning_rate) * left
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # in place: a recorded step reads this one
            else:
                group["lr"] = rate
        return left

    def number(self, value: float) -> Tensor:
        """A number as an input of a gradient step: one that was built into a recorded step would never change."""
        return torch.full((), value, dtype=torch.float32, device=self.config.device)

    def weights(self) -> dict[str, Any]:
        """The acting policy's weights as arrays, as they travel."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.acting.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs."""
        model = {f"model/{name}": tensor for name, tensor in self.network.state_dict().items()}
        memory = {f"optimizer/{name}": tensor for name, tensor in checkpoint.optimizer_tensors(self.optimizer).items()}
        return {**model, **memory}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` told."""
        self.network.load_state_dict(under("model/", tensors))
        checkpoint.restore_optimizer(self.optimizer, under("optimizer/", tensors))
        for step in self._recorded:
            step.forget()  # what the optimiser keeps lies elsewhere now

    def resume(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` told of an earlier run.

        Raises:
            ConfigError: they are not of such a network.
        """
        try:
            self.restore(tensors)
        except (RuntimeError, KeyError, ValueError) as error:  # torch's words for other shapes and other names
            raise ConfigError(
                f"the checkpoint does not fit the network: {error}. Go on with the settings and the arguments of the "
                "environment that the run has had so far."
            ) from error

    def save_beside(self, folder: pathlib.Path) -> None:
        """Save what is too large for a checkpoint, beside those of this folder."""

    def load_beside(self, folder: pathlib.Path) -> None:
        """Take what `save_beside` saved, after `restore`."""


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin like this, without that beginning.

    Example:
        >>> list(under("model/", {"model/weight": torch.zeros(1), "order": torch.zeros(1)}))
        ['weight']
    """
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def seeded(make: Callable[[], Net], seed: int) -> Net:
    """A network whose first weights follow from the seed and from nothing else; nobody's global state is touched.

    Example:
        >>> layers = [seeded(lambda: torch.nn.Linear(2, 2), 5) for _ in range(2)]
        >>> torch.equal(layers[0].weight, layers[1].weight)
        True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
