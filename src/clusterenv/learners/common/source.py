"""Where the loop of a learner gets its batches: rollouts in lock step, or a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from clusterenv.env.batch import Batch
    from clusterenv.env.stream import Stream
    from clusterenv.env.vector import ClusterEnv
    from clusterenv.learners.common.config import LearnerConfig


class Source:
    """Batches of the attached policy, in the way that the settings ask for.

    Args:
        envs: with a policy attached.
        config: the settings.
    """

    def __init__(self, envs: ClusterEnv, config: LearnerConfig) -> None:
        self._envs, self._config = envs, config
        self._stream: Stream | None = None
        if config.mode == "stream":
            self._stream = envs.stream(config.rollout_steps, config.batch_slots, buffers=config.stream_buffers)

    @property
    def ready(self) -> bool:
        """Whether the next batch is there already. In lock step nobody plays before they are asked."""
        return self._stream is not None and self._stream.ready

    def next(self) -> Batch:
        """The next batch; waits for it."""
        return self._envs.rollout(self._config.rollout_steps) if self._stream is None else next(self._stream)

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
