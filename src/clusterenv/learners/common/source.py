"""Where the loop of a learner gets its batches: rollouts in lock step, a stream, or inference on the head."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from clusterenv.learners.common.inference import Inference
from clusterenv.learners.common.seeds import playing_seed

if TYPE_CHECKING:
    from types import TracebackType

    from torch import nn

    from clusterenv.env.batch import Batch
    from clusterenv.env.stream import Stream
    from clusterenv.env.vector import ClusterEnv
    from clusterenv.learners.common.config import LearnerConfig


class Source(abc.ABC):
    """Batches of a policy, which acts somewhere. The loop does not know where."""

    @property
    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether the next batch is there already, so that `next` would not wait."""

    @abc.abstractmethod
    def next(self) -> Batch:
        """The next batch; waits for it."""

    @abc.abstractmethod
    def publish(self, policy: nn.Module) -> None:
        """The policy has new weights."""

    @abc.abstractmethod
    def stats(self) -> dict[str, Any]:
        """What was counted, as `ClusterEnv.stats` tells it."""

    @abc.abstractmethod
    def close(self) -> None:
        """No more batches are wanted."""

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WorkerSource(Source):
    """The policy acts on the workers, in lock step or in a stream.

    Args:
        envs: reset.
        policy: which acts.
        config: the settings.
        epoch: of its versions.
        every_state: whether batches shall hold the recurrent state before every step.
    """

    def __init__(
        self, envs: ClusterEnv, policy: nn.Module, config: LearnerConfig, *, epoch: int = 0, every_state: bool = False
    ) -> None:
        self._envs, self._config = envs, config
        envs.attach(
            policy,
            sync=config.sync.make(
                threshold=config.aps_threshold, by_clock=config.mode == "stream", stall_after=config.aps_stall_after
            ),
            encoding=config.encoding,
            seed=playing_seed(config.seed, epoch),
            runtime=config.runtime,
            measure=config.measure_drift,
            epoch=epoch,
            every_state=every_state,
        )
        self._stream: Stream | None = None
        if config.mode == "stream":
            self._stream = envs.stream(
                config.rollout_steps, config.batch_slots, buffers=config.stream_buffers, min_nodes=config.min_nodes
            )

    @property
    def ready(self) -> bool:
        """Whether the next batch is there already. In lock step nobody plays before they are asked."""
        return self._stream is not None and self._stream.ready

    def next(self) -> Batch:
        """The next batch; waits for it."""
        return self._envs.rollout(self._config.rollout_steps) if self._stream is None else next(self._stream)

    def publish(self, policy: nn.Module) -> None:
        """Tell the workers of a new version; the sync rule says when they fetch it."""
        self._envs.publish(policy)

    def stats(self) -> dict[str, Any]:
        """What `ClusterEnv.stats` tells."""
        return self._envs.stats()

    def close(self) -> None:
        """Let the workers stop."""
        if self._stream is not None:
            self._stream.close()


class HeadSource(Source):
    """The policy acts on the head, for the environments of all workers.

    Args:
        inference: which does it all.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    @property
    def ready(self) -> bool:
        """Whether the next batch is there already."""
        return self._inference.ready

    def next(self) -> Batch:
        """The next batch; waits for it."""
        return self._inference.next()

    def publish(self, policy: nn.Module) -> None:
        """These weights act from the next inference batch on."""
        self._inference.publish(policy)

    def stats(self) -> dict[str, Any]:
        """What was counted here."""
        return self._inference.stats()

    def close(self) -> None:
        """End the inference."""
        self._inference.close()


def source_for(
    envs: ClusterEnv, policy: nn.Module, config: LearnerConfig, *, epoch: int = 0, every_state: bool = False
) -> Source:
    """Begin new episodes, and let the policy act in the way that the settings ask for."""
    observations, _ = envs.reset(seed=playing_seed(config.seed, epoch))
    if config.inference == "worker":
        return WorkerSource(envs, policy, config, epoch=epoch, every_state=every_state)
    return HeadSource(Inference(envs, observations, policy, config, epoch=epoch, every_state=every_state))
