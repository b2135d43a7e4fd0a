"""The calls of a ClusterEnv for a policy that acts on the workers. They stand here to keep `vector` readable."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from clusterenv.env.checks import check_flags
from clusterenv.env.detached import AttachOptions, Detached
from clusterenv.env.rollout import rollout
from clusterenv.env.stream import Stream, check_min_nodes, check_stream
from clusterenv.env.turns import Pending
from clusterenv.errors import ConfigError
from clusterenv.sync.parse import parse_sync

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

    from clusterenv.config import Timeouts
    from clusterenv.env.batch import Batch
    from clusterenv.env.engine import Engine
    from clusterenv.env.turns import Turns
    from clusterenv.sync.rules import Rule
    from clusterenv.sync.versions import Version


class Detaching:
    """The part of `ClusterEnv` for attached policies. What is declared here without a value, `ClusterEnv` sets."""

    single_observation_space: Space[Any]
    single_action_space: Space[Any]
    num_envs: int
    copy: bool
    _engine: Engine
    _turns: Turns
    _timeouts: Timeouts
    _whole_blocks: Sequence[range]
    _detached: Detached | None = None
    _stream: weakref.ref[Stream] | None = None

    def attach(
        self,
        policy: Any,
        *,
        sync: str | Rule = "aps",
        encoding: str = "bf16-delta",
        seed: int | None = None,
        runtime: str = "auto",
        deterministic: bool = False,
        measure: bool = False,
        epoch: int = 0,
        every_state: bool = False,
    ) -> None:
        """Move a policy to the workers, where it acts in `rollout` and `stream`.

        Args:
            policy: a CleanRL agent, an actor-critic policy of Stable-Baselines3, a torch module or NumPy policy as
                `clusterenv.policy.adapters.as_policy` describes them.
            sync: when new weights move to the workers: `APS(threshold=0.05)`, `OnChange()`, `Every(4)`, `Always()`,
                `Never()`, or the same as text: "aps:0.05", "on-change", "every:4", "always", "never".
            encoding: how weights travel: "fp32", "bf16", or "bf16-delta" (the compressed difference).
            seed: of the actions; every slot has a random stream of its own, whatever the number of workers. None for a
                new one each time.
            runtime: "onnx" (workers without torch), "torch", or "auto".
            deterministic: act by the mode of the distribution, without exploring.
            measure: estimate the divergence for `stats` even if the rule does not look at it.
            epoch: of the versions. A run that goes on from a checkpoint takes one more than before, so that no version
                of the first head looks newer than those of the second. A cluster may know of a higher one.
            every_state: record the recurrent state before every step, as `Batch.states`, and not only before the first.

        Raises:
            ConfigError: the policy does not fit the spaces, cannot travel, or an argument is wrong.
        """
        with self._turns:
            self._turns.require_idle("attach")
            if self._whole_blocks:
                raise ConfigError(
                    "a policy on workers needs environments that are stepped one by one; these are vectorised blocks. "
                    "Use step(actions) or send/recv."
                )
            check_flags(deterministic=deterministic, measure=measure, every_state=every_state)
            options = AttachOptions(
                sync=parse_sync(sync),
                encoding=encoding,
                seed=seed,
                runtime=runtime,
                deterministic=deterministic,
                measure=measure,
                epoch=epoch,
                every_state=every_state,
            )
            spaces = self.single_observation_space, self.single_action_space
            detached = Detached(self._engine, self._timeouts, *spaces, policy, options)
            self._let_go()
            self._detached = detached

    def detach(self) -> None:
        """Let the policy go. Its statistics go with it."""
        with self._turns:
            self._turns.require_idle("detach")
            if self._detached is not None:
                self._detached.players.dismiss()
            self._let_go()

    def rollout(self, steps: int) -> Batch:
        """Let the attached policy play `steps` steps in every slot, and return them as one batch.

        With `copy=False` the arrays of the batch are views of shared memory, which the next rollout overwrites.

        Raises:
            PolicyError: the policy could not be set up on a worker, raised there, or gave NaN.
            EnvError: an environment raised, if `on_loss="raise"` or again and again.
            WorkerLost: a worker was lost, if `on_loss="raise"` or again and again.

        Example:
            >>> import clusterenv, numpy as np
            >>> from clusterenv.policy.distributions import Categorical
            >>> class Linear:
            ...     distribution = Categorical(2)
            ...     matrix = np.zeros((4, 2), np.float32)
            ...     def weights(self):
            ...         return {"matrix": self.matrix}
            ...     def forward(self, weights, obs, state):
            ...         return obs @ weights["matrix"], None, state
            >>> envs = clusterenv.make_vec("CartPole-v1", num_envs=3, cluster="inproc")
            >>> _ = envs.reset(seed=0)
            >>> envs.attach(Linear(), sync=clusterenv.APS(threshold=0.05))
            >>> batch = envs.rollout(8)
            >>> batch.obs.shape, batch.reward.shape
            ((9, 3, 4), (8, 3))
            >>> envs.close()
        """
        with self._turns:
            detached = self._attached("rollout")
            self._turns.require_idle("rollout")
            self._turns.need_reset()
            check_stream(steps, 1, 1, self.num_envs)
            play = functools.partial(rollout, detached, int(steps), copy=self.copy)
            batch: Batch = self._turns.run_unsplit(Pending.ROLLOUT, play)
            return batch

    def stream(
        self,
        steps: int,
        slots: int | None = None,
        *,
        buffers: int = 3,
        drop_oldest: bool = False,
        min_nodes: int = 1,
    ) -> Stream:
        """Let the attached policy play without end, and iterate over batches as they are ready.

        Workers do not wait for the learner. One that is `buffers` fragments ahead of it does, unless `drop_oldest`.

        Args:
            steps: the length of a fragment.
            slots: how many slots make a batch; None for all. Fragments that are ready first come first.
            buffers: how many fragments a worker may be ahead.
            drop_oldest: when it is that far ahead, drop its oldest fragment and let it play on.
            min_nodes: with fewer nodes the stream waits, as long as the cluster's `wait_s`; then it raises
                `WorkersMissing`.

        A lost worker costs its own slots only: the others play on while another takes its place. With
        `on_loss="shrink"` they do so even if none can be had.

        Example:
            >>> for batch in envs.stream(steps=20, slots=32):  # doctest: +SKIP
            ...     learn(batch)
            ...     envs.publish(agent)
        """
        with self._turns:
            detached = self._attached("stream")
            self._turns.require_idle("stream")
            self._turns.need_reset()
            count = self.num_envs if slots is None else slots
            check_stream(steps, count, buffers, self.num_envs, drop_oldest=drop_oldest)
            check_min_nodes(min_nodes, len(detached.engine.node.hosts))
            sizes = {"steps": int(steps), "slots": int(count), "buffers": int(buffers), "min_nodes": int(min_nodes)}
            stream = Stream(detached, self._turns, owner=self, drop_oldest=drop_oldest, **sizes)
            self._stream = weakref.ref(stream)
            return stream

    def publish(self, policy: Any = None) -> Version:
        """Tell that the policy has new weights. They move to the workers when the rule of `attach` says so.

        Weights that are those of the newest version, bit for bit, are no new version: nobody lags behind them, and they
        do not move again.

        Args:
            policy: the policy, or another of the same kind; None for the attached object, whose weights have changed.

        Returns:
            The version of these weights: a new one, or the newest again if they have not changed.

        Raises:
            WeightsError: a weight is not finite, or they are not those of the attached policy. Nothing was published.
            PolicyError: the policy raised, or gave NaN, on the head, where its drift is measured.
        """
        with self._turns:
            return self._attached("publish").publish(policy)

    def sync(self) -> None:
        """Move the newest weights to the workers now, whatever the rule says."""
        with self._turns:
            self._attached("sync").sync()

    def stats(self) -> dict[str, Any]:
        """What has been counted since `attach`: steps, syncs and their reasons, bytes, lag, divergence, times."""
        with self._turns:
            return self._attached("stats").stats()

    def _attached(self, name: str) -> Detached:
        if self._detached is None:
            raise ConfigError(f"no policy is attached. Call attach(policy) before {name}().")
        return self._detached

    def _stop_playing(self) -> None:
        """Before the end: whoever plays stops, so that closing need not wait for it."""
        if not self._turns.ours:  # they play for the process that we were forked from
            self._turns.stream_ended()
            return
        stream = self._stream() if self._stream is not None else None
        if stream is not None:
            stream.abandon()
        elif self._detached is not None:
            self._detached.players.stop()

    def _let_go(self) -> None:
        detached, self._detached = self._detached, None  # first: after an interrupt nobody uses what is half closed
        if detached is not None:
            detached.close()
