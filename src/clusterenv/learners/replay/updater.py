"""What learners with a memory share: put in, sample, learn, tell the memory what surprised, follow with the target."""

from __future__ import annotations

import abc
import copy
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import torch

from clusterenv.errors import ConfigError, WeightsCorrupt
from clusterenv.learners.common import rewards, trees
from clusterenv.learners.common.measured import numbers
from clusterenv.learners.common.updater import Updater, under
from clusterenv.learners.replay import disk
from clusterenv.learners.replay.config import ReplayConfig
from clusterenv.learners.replay.limiter import RateLimiter
from clusterenv.metrics import keys

if TYPE_CHECKING:
    import os
    import pathlib
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt
    from torch import Tensor, nn

    from clusterenv.env.batch import Batch

    Array = npt.NDArray[Any]

_MEMORY = "memory"  # the folder beside the checkpoints
_log = logging.getLogger(__name__)

Config = TypeVar("Config", bound=ReplayConfig)
Net = TypeVar("Net", bound="nn.Module")


class Learned(NamedTuple):
    """What one update told.

    Attributes:
        metrics: by name.
        priorities: [B], how much each item surprised; None if the memory need not know.
    """

    metrics: dict[str, float]
    priorities: Array | None = None


class Drawn(Protocol):
    """A sample of a memory: which items, their weights in the loss, and what they are."""

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """[B], for `Memory.update`."""

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """[B]."""

    @property
    def data(self) -> Any:
        """A NamedTuple of arrays."""


class LearnsScale(Protocol):
    """A network that may normalise what it observes, as all of ours."""

    def learn_scale(self, obs: Any) -> None:
        """Take observations with n rows into the running mean and variance, if there is one."""


class Memory(Protocol):
    """What the loop of a learner asks of a memory."""

    def __len__(self) -> int:
        """Items that can be sampled."""

    def sample(self, count: int) -> Drawn:
        """So many items."""

    def update(self, ids: npt.NDArray[np.int64], priorities: Array) -> None:
        """What surprised, and how much."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything into a folder."""

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Take what was saved there."""


class ReplayUpdater(Updater[Config, Net]):
    """A network, its target network, its optimiser and a memory.

    Args:
        config: the settings.
        network: fresh, with its first weights.
        optimizer: of its parameters.
        memory: empty.
        followed: what the target network is a copy of, if it is only a part of the network.
    """

    takes_tensors: ClassVar[bool] = False

    def __init__(
        self,
        config: Config,
        network: Net,
        optimizer: torch.optim.Optimizer,
        memory: Memory,
        *,
        followed: nn.Module | None = None,
    ) -> None:
        super().__init__(config, network, optimizer)
        self._followed: nn.Module = network if followed is None else followed
        self.target: Any = copy.deepcopy(self._followed).requires_grad_(False)
        self.memory = memory
        self.limiter = RateLimiter(config.samples_per_insert, config.learning_starts, config.slack)
        self.updates = 0
        self._step = self.best_step(self.gradient_step)

    @abc.abstractmethod
    def insert(self, batch: Batch) -> int:
        """Put a batch of arrays, with the rewards to learn from, into the memory; returns how many items are new."""

    @abc.abstractmethod
    def gradient_step(self, data: Any, weights: Tensor, *more: Any) -> tuple[dict[str, Tensor], Tensor]:
        """Learn from a sample. It reads no number back from the device, so that a GPU need not wait.

        Returns:
            What was measured, and how much each item surprised, [B], as it was before.
        """

    def inputs(self, sample: Drawn) -> tuple[Any, ...]:
        """The arguments of a gradient step, each a tree of tensors on the learner's device."""
        return sample.data, sample.weights

    def learn(self, sample: Drawn, left: float) -> Learned:
        """One gradient step. The sample's weights and data are tensors on the learner's device."""
        left = self.anneal(left)
        told, surprise = self._step(*self.inputs(sample))
        metrics = {**numbers(told), keys.LEARNING_RATE.name: self.config.learning_rate * left}
        return Learned(metrics, surprise.cpu().numpy() if self.config.prioritized else None)

    def learn_scale(self, batch: Batch) -> None:
        """Let the policy learn the scale of observations from a batch of arrays, if it is to."""
        if self.config.normalize_observations:
            seen = trees.each(lambda array: torch.as_tensor(array[:-1], device=self.config.device), batch.obs)
            cast("LearnsScale", self.acting).learn_scale(trees.rows(seen))

    @property
    def needs_batch(self) -> bool:
        """When what is there was learned from as often as it may be."""
        return not self.limiter.may_sample(self.config.sample_size)

    @property
    def takes_batch(self) -> bool:
        """Unless the learner is too far behind."""
        return self.limiter.may_insert

    def update(self, batch: Batch | None, left: float, publish: Callable[[], None]) -> dict[str, float]:
        """Take a batch into the memory if there is one, and learn from a sample if the rate allows it."""
        config = self.config
        if batch is not None:
            reward = rewards.for_learner(config, torch.from_numpy(batch.reward)).numpy()
            self.limiter.inserted(self.insert(dataclasses.replace(batch, reward=reward)))
        self.learned = self.limiter.may_sample(config.sample_size)
        if not self.learned:
            return self._counts()
        self.limiter.sampled(config.sample_size)
        sample = self.memory.sample(config.sample_size)
        learned = self.learn(on_device(sample, config.device), left)
        if learned.priorities is not None:
            self.memory.update(sample.ids, learned.priorities)
        self.updates += 1
        if self.updates % config.target_every == 0:
            follow(self.target, self._followed, config.target_rate)
        if self.updates % config.publish_every == 0:
            publish()
        return {**self._counts(), **learned.metrics}

    def _counts(self) -> dict[str, float]:
        """How full the memory is, and who waits for whom."""
        return {
            keys.REPLAY_SIZE.name: len(self.memory),
            keys.REPLAY_RATIO.name: self.limiter.ratio,
            keys.REPLAY_FULL.name: float(not self.limiter.may_insert),
        }

    def save_beside(self, folder: pathlib.Path) -> None:
        """Save the memory, if it is to be kept."""
        if self.config.keep_memory:
            try:
                self.memory.save(folder / _MEMORY)
            except (OSError, ConfigError) as error:
                # The checkpoint is there, and the memory that was saved before this one: the run can go on.
                _log.warning("the memory was not saved: %s", str(error))

    def load_beside(self, folder: pathlib.Path) -> None:
        """Take the memory that was saved, if there is one."""
        if not self.config.keep_memory or not disk.is_saved(folder / _MEMORY):
            return
        try:
            self.memory.load(folder / _MEMORY)
        except (WeightsCorrupt, ConfigError) as error:  # damaged, or of other settings
            _log.warning("this run goes on with an empty memory: %s", str(error))
            return
        self.limiter.resume(len(self.memory))

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint needs but the memory."""
        target = {f"target/{name}": tensor for name, tensor in self.target.state_dict().items()}
        return {**super().tensors(), **target, "updates": torch.tensor(self.updates)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `tensors` told."""
        super().restore(tensors)
        self.target.load_state_dict(under("target/", tensors))
        self.updates = int(tensors["updates"])


class _OnDevice(NamedTuple):
    ids: Any
    weights: Any
    data: Any


def on_device(sample: Drawn, device: str) -> Drawn:
    """The same sample with tensors in place of arrays, but for the ids; float64 becomes float32."""

    def tensor(array: Any) -> Tensor:
        made = torch.as_tensor(array)
        return (made.float() if made.dtype == torch.float64 else made).to(device, non_blocking=True)

    return _OnDevice(sample.ids, tensor(sample.weights), trees.each(tensor, sample.data))


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move a target network towards another: parameters by this share, and buffers all the way.

    Example:
        >>> target, source = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        >>> follow(target, source, 1.0)
        >>> torch.equal(target.weight, source.weight)
        True
    """
    for mine, other in zip(target.parameters(), source.parameters(), strict=True):
        mine.lerp_(other, rate)
    for kept, newest in zip(target.buffers(), source.buffers(), strict=True):
        kept.copy_(newest)
