"""The loop of every learner: collect, learn, publish; the policy acts on the workers, or beside the learner."""

from __future__ import annotations

import abc
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch

from clusterenv.learners.common.devices import check_device, room_for_network
from clusterenv.learners.common.environments import environments
from clusterenv.learners.common.finite import refuse_bad_observations, refuse_bad_rewards
from clusterenv.learners.common.source import source_for
from clusterenv.learners.common.tracking import WINDOW, Means, Tracker, full_bytes
from clusterenv.metrics.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gymnasium import Space

    from clusterenv.config import Cluster
    from clusterenv.env.batch import Batch
    from clusterenv.env.vector import ClusterEnv
    from clusterenv.learners.common.checkpoint import Checkpoint, Checkpoints
    from clusterenv.learners.common.config import LearnerConfig
    from clusterenv.learners.common.source import Source
    from clusterenv.learners.common.tracking import Summary
    from clusterenv.learners.common.updater import Updater

Config = TypeVar("Config", bound="LearnerConfig")


class Update(NamedTuple):
    """One row of metrics: where the run is, and what was measured since the last one."""

    global_step: int
    seconds: float
    metrics: dict[str, float]


class Learner(abc.ABC, Generic[Config]):
    """Trains a policy that acts on the workers, or beside the learner.

    Args:
        config: the settings.
        recorder: gets the metrics.
        checkpoints: where to save: now and then, at the end, and when interrupted. None saves nothing.
        resume: go on from this checkpoint. The environments start anew; weights, optimiser and step count do not.
        cluster: in place of the one of the settings, for what cannot be part of a text.
    """

    def __init__(
        self,
        config: Config,
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
        self._updater: Updater[Config, Any] | None = None
        self._tracker = Tracker(workers=0, full_bytes=0)
        self._means = Means()
        self._stats: dict[str, Any] = {}
        self._began, self._earlier_s, self._seconds, self._saved_at = 0.0, 0.0, 0.0, 0.0
        self._interrupted, self._epoch = False, 0

    @abc.abstractmethod
    def make_updater(self, observation_space: Space[Any], action_space: Space[Any]) -> Updater[Config, Any]:
        """The network and what learns, for the spaces of one environment."""

    @property
    def updater(self) -> Updater[Config, Any]:
        """The network and its optimiser, once training has begun."""
        if self._updater is None:
            raise AttributeError("there is no network before train(): the environments tell its shape.")
        return self._updater

    @property
    def network(self) -> Any:
        """The agent, once training has begun."""
        return self.updater.network

    @property
    def stats(self) -> dict[str, Any]:
        """What `Source.stats()` said with the last row of metrics."""
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
            self._stats, env_id=self.config.title, seed=self.config.seed, seconds=self._seconds
        )
        return replace(told, interrupted=self._interrupted)

    def updates(self) -> Iterator[Update]:
        """Train, one row of metrics at a time. Leaving the loop closes the environments."""
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
            "task_returns": [list(returns) for returns in tracker.by_task],
            "seconds": self._seconds,
            "epoch": self._epoch,
        }
        self.checkpoints.save(tracker.steps, self.updater.tensors(), facts)
        self.updater.save_beside(self.checkpoints.folder)
        self._saved_at = self._clock()  # what takes long to save is not saved all the time

    def publish(self, source: Source) -> None:
        """Tell whoever acts of a new version."""
        source.publish(self.updater.acting)

    @contextlib.contextmanager
    def _environments(self) -> Iterator[ClusterEnv]:
        """Make the environments, the network and the counters."""
        config = self.config
        check_device(config.device)
        with environments(config, self._cluster) as envs:
            with room_for_network(config.device):
                self._updater = self.make_updater(envs.single_observation_space, envs.single_action_space)
            names = tuple(task.name for task in config.all_tasks())
            self._tracker = Tracker(
                len(envs.worker_pids()),  # a cluster of other hosts has so many on each, or as many as there are cores
                full_bytes(self.updater.weights(), config.encoding),
                tasks=names if len(names) > 1 else (),
                scored=config.scored_slots(),
            )
            if self.resume is not None:
                self._restore(self.resume)
            yield envs

    def _restore(self, saved: Checkpoint) -> None:
        facts, tracker = saved.facts, self._tracker
        self.updater.resume(saved.tensors)
        if self.checkpoints is not None:
            self.updater.load_beside(self.checkpoints.folder)
        tracker.resume(facts["global_step"], facts["seconds"])
        tracker.episodes = facts["episodes"]
        tracker.returns.extend(facts["returns"])
        tracker.lengths.extend(facts["lengths"])
        for kept, returns in zip(tracker.by_task, facts.get("task_returns", ()), strict=False):
            kept.extend(returns)
        # The checkpoint it goes on from counts as saved just now; and what is interrupted at once has taken as long.
        self._earlier_s = self._seconds = self._saved_at = facts["seconds"]
        self._epoch = facts.get("epoch", 0) + 1

    def _run(self, envs: ClusterEnv) -> Iterator[Update]:
        try:
            every_state = self.updater.every_state
            with source_for(
                envs, self.updater.acting, self.config, epoch=self._epoch, every_state=every_state
            ) as source:
                yield from self._loop(source)
        except KeyboardInterrupt:
            # It may have struck between two tensors of a gradient step. Every one of them is still a sound tensor.
            self._interrupted = True
            if self._tracker.steps:  # before that there is nothing to go on from
                self.save()
            raise

    def _loop(self, source: Source) -> Iterator[Update]:
        self._began, count = time.perf_counter(), 0
        done = self._done()  # a run that is resumed may have nothing left to do
        while not done:
            self._learn(source)
            self._seconds = self._clock()
            done, count = self._done(), count + 1
            told = self._tell(source) if done or count % self.config.record_every == 0 else None
            if done or self._seconds - self._saved_at >= self.config.checkpoint_every_s:
                self.save()
            if told is not None:
                yield told

    def _clock(self) -> float:
        """Seconds of the run so far, with those before it was resumed."""
        return self._earlier_s + time.perf_counter() - self._began

    def _learn(self, source: Source) -> None:
        """One update, with a new batch if there is one or if it takes one."""
        tracker, updater = self._tracker, self.updater
        left = max(0.0, 1.0 - tracker.steps / self.config.total_steps)
        batch = None
        if updater.needs_batch or self._has_more(source):
            batch, more = self._next(source), updater.takes_more
            while more and self._has_more(source):
                updater.keep(batch)
                batch, more = self._next(source), more - 1
        self._means.add(updater.update(batch, left, lambda: self.publish(source)))
        tracker.updates += updater.learned

    def _has_more(self, source: Source) -> bool:
        """Whether there is a batch already that the updater has a use for."""
        return not self._spent and self.updater.takes_batch and source.ready

    def _next(self, source: Source) -> Batch:
        """The next batch, in the form that the updater takes; waits for it."""
        waiting = time.perf_counter()
        fresh = source.next()
        refuse_bad_rewards(fresh)
        refuse_bad_observations(fresh)
        self._epoch = fresh.epoch
        self._tracker.take(fresh, time.perf_counter() - waiting)
        return fresh.to(torch, self.config.device) if self.updater.takes_tensors else fresh

    def _tell(self, source: Source) -> Update:
        self._stats = source.stats()
        values = {**self._means.take(), **self._tracker.metrics(self._stats, self._seconds)}
        self.recorder.record(values, global_step=self._tracker.steps, seconds=self._seconds)
        return Update(self._tracker.steps, self._seconds, values)

    def _done(self) -> bool:
        target, tracker = self.config.target_return, self._tracker
        if target is not None and len(tracker.returns) == WINDOW and tracker.mean_return >= target:
            return True
        return self._spent and self.updater.needs_batch  # what is left of the data is learned from

    @property
    def _spent(self) -> bool:
        """Whether another batch would be more than the budget."""
        return self._tracker.steps + self.config.batch_size > self.config.total_steps
