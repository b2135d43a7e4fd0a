"""PPO: the loop. Collect, learn, publish; the policy acts on the workers."""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from clusterenv.env.make import make_vec
from clusterenv.learners.common.tracking import WINDOW, Tracker, full_bytes
from clusterenv.learners.ppo.config import THRESHOLD
from clusterenv.learners.ppo.update import Updater
from clusterenv.metrics.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterenv.config import Cluster
    from clusterenv.env.batch import Batch
    from clusterenv.env.vector import ClusterEnv
    from clusterenv.learners.common.checkpoint import Checkpoint, Checkpoints
    from clusterenv.learners.common.networks import ActorCritic
    from clusterenv.learners.common.tracking import Summary
    from clusterenv.learners.ppo.config import PPOConfig


class Update(NamedTuple):
    """One round of learning: where the run is, and what was measured."""

    global_step: int
    seconds: float
    metrics: dict[str, float]


class PPO:
    """Proximal policy optimisation with the policy on the workers.

    Args:
        config: the settings.
        recorder: gets the metrics of every update.
        checkpoints: where to save: now and then, at the end, and when interrupted. None saves nothing.
        resume: go on from this checkpoint. The environments start anew; weights, optimiser and step count do not.
        cluster: in place of the one of the settings, for what cannot be part of a text.

    Example:
        >>> from clusterenv.learners.ppo import PPOConfig
        >>> config = PPOConfig(cluster="inproc", num_envs=2, rollout_steps=8, total_steps=16, minibatches=2)
        >>> PPO(config).train().steps
        16
    """

    def __init__(
        self,
        config: PPOConfig,
        *,
        recorder: Recorder | None = None,
        checkpoints: Checkpoints | None = None,
        resume: Checkpoint | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.config = config
        self._cluster = config.cluster if cluster is None else cluster
        self.recorder = Recorder() if recorder is None else recorder
        self.checkpoints, self.resume = checkpoints, resume
        self._updater: Updater | None = None
        self._tracker = Tracker(workers=0, full_bytes=0)
        self._stats: dict[str, Any] = {}
        self._earlier_s, self._seconds, self._saved_at = 0.0, 0.0, 0.0
        self._interrupted, self._epoch = False, 0

    @property
    def network(self) -> ActorCritic:
        """The agent, once training has begun."""
        return self.updater.network

    @property
    def updater(self) -> Updater:
        """The network and its optimiser, once training has begun."""
        if self._updater is None:
            raise AttributeError("there is no network before train(): the environments tell its shape.")
        return self._updater

    @property
    def stats(self) -> dict[str, Any]:
        """What `ClusterEnv.stats()` said after the last update."""
        return self._stats

    def train(self) -> Summary:
        """Train until the step budget is spent or the target is reached.

        Raises:
            KeyboardInterrupt: as it came, after a checkpoint was saved and the environments were closed.
        """
        for _ in self.updates():
            pass
        return self.summary()

    def summary(self) -> Summary:
        """What came of the run so far."""
        told = self._tracker.summary(
            self._stats, env_id=self.config.env_id, seed=self.config.seed, seconds=self._seconds
        )
        return replace(told, interrupted=self._interrupted)

    def updates(self) -> Iterator[Update]:
        """Train, one update at a time. Leaving the loop closes the environments."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.config.torch_threads)
        try:
            with self._environments() as envs:
                yield from self._run(envs)
        finally:
            torch.set_num_threads(threads)

    def save(self) -> None:
        """Save a checkpoint, if there is a place for it and something to save."""
        if self.checkpoints is None or self._updater is None:
            return
        tracker = self._tracker
        facts = {
            "global_step": tracker.steps,
            "episodes": tracker.episodes,
            "returns": list(tracker.returns),
            "lengths": list(tracker.lengths),
            "seconds": self._seconds,
            "epoch": self._epoch,
        }
        self.checkpoints.save(tracker.steps, self.updater.tensors(), facts)
        self._saved_at = self._seconds

    @contextlib.contextmanager
    def _environments(self) -> Iterator[ClusterEnv]:
        """Make the environments, the network and the counters, and attach the one to the other."""
        config = self.config
        with _closing(make_vec(config.env_id, config.num_envs, cluster=self._cluster)) as envs:
            envs.reset(seed=config.seed)
            self._updater = Updater(config, envs.single_observation_space, envs.single_action_space)
            self._tracker = Tracker(envs.cluster.workers, full_bytes(self.updater.weights(), config.encoding))
            if self.resume is not None:
                self._restore(self.resume)
            envs.attach(
                self.updater.network,
                sync=config.sync.make(threshold=THRESHOLD, by_clock=config.mode == "stream"),
                encoding=config.encoding,
                seed=config.seed,
                runtime=config.runtime,
                measure=config.measure_drift,
                epoch=self._epoch,
            )
            yield envs

    def _restore(self, saved: Checkpoint) -> None:
        facts, tracker = saved.facts, self._tracker
        self.updater.restore(saved.tensors)
        tracker.steps, tracker.episodes = facts["global_step"], facts["episodes"]
        tracker.returns.extend(facts["returns"])
        tracker.lengths.extend(facts["lengths"])
        self._earlier_s = facts["seconds"]
        self._epoch = facts.get("epoch", 0) + 1

    def _run(self, envs: ClusterEnv) -> Iterator[Update]:
        try:
            yield from self._loop(envs)
        except KeyboardInterrupt:
            # It may have struck between two tensors of a gradient step. Every one of them is still a sound tensor.
            self._interrupted = True
            self.save()
            raise

    def _loop(self, envs: ClusterEnv) -> Iterator[Update]:
        began = waiting = time.perf_counter()
        for batch in self._batches(envs):
            self._epoch = batch.epoch
            self._tracker.take(batch, time.perf_counter() - waiting)
            losses = self._learn(envs, batch)
            self._seconds = self._earlier_s + time.perf_counter() - began
            self._stats = envs.stats()
            values = {**losses, **self._tracker.metrics(self._stats, self._seconds)}
            self.recorder.record(values, global_step=self._tracker.steps, seconds=self._seconds)
            done = self._done()
            if done or self._seconds - self._saved_at >= self.config.checkpoint_every_s:
                self.save()
            yield Update(self._tracker.steps, self._seconds, values)
            if done:
                return
            waiting = time.perf_counter()

    def _batches(self, envs: ClusterEnv) -> Iterator[Batch]:
        config = self.config
        if config.mode == "stream":
            with envs.stream(config.rollout_steps, config.batch_slots, buffers=config.stream_buffers) as stream:
                yield from stream
        while True:
            yield envs.rollout(config.rollout_steps)

    def _learn(self, envs: ClusterEnv, batch: Batch) -> dict[str, float]:
        config, updater = self.config, self.updater
        each_step = config.publish_every == "gradient step"
        left = 1.0 - (self._tracker.steps - batch.steps) / config.total_steps

        def publish() -> None:
            envs.publish(updater.network)

        losses = updater.update(batch.to(torch, config.device), max(0.0, left), publish if each_step else _nothing)
        if not each_step or config.normalize_observations:
            publish()
        return losses

    def _done(self) -> bool:
        target, tracker = self.config.target_return, self._tracker
        if target is not None and len(tracker.returns) == WINDOW and tracker.mean_return >= target:
            return True
        return tracker.steps + self.config.batch_size > self.config.total_steps


@contextlib.contextmanager
def _closing(envs: ClusterEnv) -> Iterator[ClusterEnv]:
    """Close the environments at the end. After an interrupt a rollout is pending, which is no news to anybody."""
    try:
        yield envs
    except KeyboardInterrupt:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Calling `close` while waiting", UserWarning)
            envs.close()
        raise
    finally:
        envs.close()


def _nothing() -> None:
    """When versions are made per update, a gradient step is followed by nothing."""
