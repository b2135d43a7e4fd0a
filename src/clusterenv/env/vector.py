"""ClusterEnv: a Gymnasium vector environment whose environments live on workers."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.error import NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv

from clusterenv.config import OnLoss, check_num_envs, parse_cluster, parse_on_loss
from clusterenv.env import checks, opening
from clusterenv.env.actions import Actions
from clusterenv.env.agree import check_observation_mode
from clusterenv.env.calling import Calling
from clusterenv.env.detaching import Detaching
from clusterenv.env.infos import batch_infos, endless_info, select
from clusterenv.env.turns import Pending, Turns
from clusterenv.errors import ConfigError, ConfigTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from clusterenv.config import Cluster, Timeouts
    from clusterenv.env.infos import InfosOf
    from clusterenv.worker.report import Report

    Flags = npt.NDArray[np.bool_]
    StepResult = tuple[Any, npt.NDArray[np.float64], Flags, Flags, dict[str, Any]]


class ClusterEnv(VectorEnv[Any, Any, Any], Calling, Detaching):
    """A batch of environments on worker processes, with the interface and the answers of `SyncVectorEnv`.

    Most users call `clusterenv.make_vec`. This constructor takes factories, as `AsyncVectorEnv` does.

    Args:
        env_fns: one factory per slot. Lambdas and closures are fine: the workers are on this host.
        cluster: where the workers run: "local:4", "inproc", or a typed object such as `Local(workers=4)`.
        copy: whether `reset` and `step` return copies of the observations (True), or views that the next step
            overwrites.
        observation_mode: "same", "different", or (batched space, single space), as in Gymnasium.
        autoreset_mode: when a finished environment is reset: NEXT_STEP, SAME_STEP or DISABLED.
        on_loss: "restart", "shrink" or "raise", see `OnLoss`.
        timeouts: how long we wait, see `Timeouts`.
        infos: the dialect of the infos, "gymnasium" or, with SAME_STEP, "gymnasium-0.29".
        max_concurrency: at most this many environments run at the same time; it caps the number of workers.
        shared_memory: taken for compatibility with `AsyncVectorEnv`; shared memory is always used.
        context: taken for compatibility; workers always start from a clean fork server.
        daemon: taken for compatibility; workers always end with the head.
        worker: taken for compatibility; must be None.

    Example:
        >>> import gymnasium
        >>> envs = ClusterEnv([lambda: gymnasium.make("CartPole-v1")] * 4, cluster="inproc")
        >>> observations, infos = envs.reset(seed=7)
        >>> observations.shape
        (4, 4)
        >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
        *,
        cluster: str | Cluster = "local",
        copy: bool = True,
        observation_mode: Any = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        on_loss: str | OnLoss = OnLoss.RESTART,
        timeouts: Timeouts | None = None,
        infos: str = "gymnasium",
        max_concurrency: int | None = None,
        shared_memory: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
    ) -> None:
        if worker is not None:
            raise ConfigError("worker= must be None: ClusterEnv has its own workers. Wrap the environment instead.")
        factories = opening.check_factories(env_fns)
        where = parse_cluster(cluster)
        mode, loss = opening.check_autoreset_mode(autoreset_mode), parse_on_loss(on_loss)
        rebuild = loss is not OnLoss.RAISE
        plan = opening.Plan(
            cluster=where,
            num_envs=len(factories),
            node=opening.env_node(factories, where, mode, max_concurrency, rebuild=rebuild),
            observation_mode=check_observation_mode(observation_mode),
            autoreset_mode=mode,
            on_loss=loss,
            timeouts=opening.check_timeouts(timeouts),
        )
        self._open(plan, copy=copy, infos=infos)

    @classmethod
    def from_blocks(
        cls,
        factory: Callable[[int], Any],
        num_envs: int,
        *,
        cluster: str | Cluster = "local",
        copy: bool = True,
        on_loss: str | OnLoss = OnLoss.RESTART,
        timeouts: Timeouts | None = None,
        infos: str = "gymnasium",
    ) -> ClusterEnv:
        """A batch whose workers each step one vectorised environment.

        Its errors are always raised, since it holds all slots of its worker. Its autoreset mode is its own.

        Args:
            factory: called on each worker with the number of its slots; returns a `VectorEnv`, or an EnvPool.
            num_envs: the number of slots in all.
            cluster: as in the constructor, like all that follow.
            copy: see there.
            on_loss: see there; it is about lost workers only.
            timeouts: see there.
            infos: see there.

        Example:
            >>> from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
            >>> envs = ClusterEnv.from_blocks(CartPoleVectorEnv, 8, cluster="inproc:2")
            >>> envs.reset(seed=1)[0].shape
            (8, 4)
            >>> envs.close()
        """
        if not callable(factory):
            raise ConfigTypeError(f"factory={factory!r} must be a function of the number of slots.")
        where = parse_cluster(cluster)
        count = check_num_envs(num_envs)
        plan = opening.Plan(
            cluster=where,
            num_envs=count,
            node=opening.block_node(factory, count, where),
            observation_mode="same",
            autoreset_mode=None,  # that of the vectorised environments
            on_loss=parse_on_loss(on_loss),
            timeouts=opening.check_timeouts(timeouts),
        )
        self = cls.__new__(cls)
        self._open(plan, copy=copy, infos=infos)
        return self

    def _open(self, plan: opening.Plan, *, copy: bool, infos: str) -> None:
        self.closed = True  # until there is something to close
        checks.check_flags(copy=copy)
        self._dialect = opening.check_dialect(infos, plan.autoreset_mode)
        self._engine, agreed, mode = opening.open_batch(plan)
        self._turns = Turns(self._engine, type(self).__name__)
        # Runs when the batch is forgotten and when the interpreter ends, whatever happened before.
        self._finalizer = weakref.finalize(self, self._turns.end_all)
        self.observation_space, self.action_space = agreed.observation_space, agreed.action_space
        self.single_observation_space = agreed.single_observation_space
        self.single_action_space = agreed.single_action_space
        self.num_envs, self.copy, self.cluster = plan.num_envs, copy, plan.cluster
        self.observation_mode, self.autoreset_mode = plan.observation_mode, mode
        self.metadata = {**agreed.metadata, "autoreset_mode": mode}
        self.render_mode = agreed.render_mode
        self._whole_blocks = self._engine.node.blocks if plan.autoreset_mode is None else []
        self._timeouts = plan.timeouts
        # Then the step of a slot whose episode is over is a reset, and takes no action.
        skips_finished = mode is AutoresetMode.NEXT_STEP
        self._actions = Actions(self.single_action_space, self._engine.arena, skips_finished=skips_finished)
        self._warned_reward = False
        self.closed = False

    # Reset.

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset every slot, or those of `options["reset_mask"]`.

        Args:
            seed: a whole number (slot i gets `seed + i`), one per slot, or None.
            options: handed to the environments, without `reset_mask`.

        Returns:
            The observations of all slots, and the infos of those that were reset.

        Raises:
            EnvError: an environment raised, three times in a row if `on_loss="restart"`.
            WorkerLost: a worker was lost and `on_loss="raise"`.
        """
        with self._turns:
            self._begin_reset("reset", seed, options)
            return self._end_reset(None)

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """The first half of `reset`."""
        with self._turns:
            self._begin_reset("reset_async", seed, options)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The second half of `reset`; `timeout` as in `step_wait`, with `timeouts.reset_s`."""
        with self._turns:
            self._turns.require_pending(Pending.RESET)
            return self._end_reset(checks.wait_limit(timeout))

    def _begin_reset(self, name: str, seed: object, options: object) -> None:
        seeds = checks.seeds_per_slot(seed, self.num_envs)
        slots, rest = checks.reset_options(options, self.num_envs)
        # Nothing is given up for a reset of some slots: the others would lose it, and nobody would be told.
        if len(slots) == self.num_envs and (name == "reset" or self._turns.abandoned):
            self._turns.give_up()
        self._turns.require_idle(name)
        recovery = self._engine.recovery
        if len(slots) < self.num_envs and (recovery.must_reset or not recovery.was_reset):
            why = "an error has broken the batch" if recovery.must_reset else "this is the first reset"
            raise ConfigError(f"options['reset_mask'] must be all True because {why}. Call reset() without a mask.")
        chosen = {slot: seeds[slot] for slot in slots.tolist()}
        self._turns.start(Pending.RESET, functools.partial(self._engine.begin_reset, chosen, rest))

    def _end_reset(self, timeout: float | None, infos_of: InfosOf = batch_infos) -> tuple[Any, dict[str, Any]]:
        report = self._turns.finish(functools.partial(self._engine.end_reset, timeout))
        return self._engine.observations.batch(copy=self.copy), self._infos(report, "reset", infos_of)

    # Lock step.

    def step(self, actions: Any) -> StepResult:
        """Step every slot once.

        Args:
            actions: an element of `action_space`: one action per slot.

        Returns:
            Observations, rewards (float64), terminated, truncated (bool) and infos, as `SyncVectorEnv` returns them.

        Raises:
            ActionError: the actions do not fit; nothing was stepped.
            EnvError: an environment raised, if `on_loss="raise"` or again and again.
            WorkerLost: a worker was lost, if `on_loss="raise"` or again and again.

        Example:
            >>> import clusterenv
            >>> envs = clusterenv.make_vec("CartPole-v1", num_envs=3, cluster="inproc")
            >>> _ = envs.reset(seed=0)
            >>> observations, rewards, terminated, truncated, infos = envs.step([0, 1, 0])
            >>> rewards
            array([1., 1., 1.])
            >>> envs.close()
        """
        with self._turns:
            self._begin_step("step", actions)
            return self._end_step(None)

    def step_async(self, actions: Any) -> None:
        """The first half of `step`."""
        with self._turns:
            self._begin_step("step_async", actions)

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """The second half of `step`.

        Args:
            timeout: in seconds; None means `timeouts.step_s`, after which a worker counts as lost.

        Raises:
            multiprocessing.TimeoutError: not ready in time; the step is still under way, call `step_wait` again.
        """
        with self._turns:
            self._turns.require_pending(Pending.STEP)
            self._turns.need_reset()  # an interrupt may have taken the place of the error that says so
            return self._end_step(checks.wait_limit(timeout))

    def _begin_step(self, name: str, actions: Any) -> None:
        turns = self._turns
        turns.require_idle(name)
        turns.need_reset()
        if self.autoreset_mode is AutoresetMode.DISABLED:
            checks.refuse_finished(self._engine.arena, None)
        objects = self._actions.put(actions, None, self.num_envs)
        self._turns.start(Pending.STEP, functools.partial(self._engine.begin_step, objects))

    def _end_step(self, timeout: float | None, infos_of: InfosOf = batch_infos) -> StepResult:
        report = self._turns.finish(functools.partial(self._engine.end_step, timeout))
        arena = self._engine.arena
        rewards = arena.reward.copy()
        self._warned_reward = self._warned_reward or checks.warn_of_bad_rewards(rewards)
        return (
            self._engine.observations.batch(copy=self.copy),
            rewards,
            arena.terminated.copy(),
            arena.truncated.copy(),
            self._infos(report, "step", infos_of) if report else {},
        )

    def _infos(self, report: Report, doing: str, infos_of: InfosOf = batch_infos) -> dict[str, Any]:
        try:
            return infos_of(self, report, self._dialect)
        except RecursionError:
            endless = endless_info(report, doing)
            if endless is None:
                raise
            # Without the cause: a thousand times the same frame says nothing.
            raise self._engine.recovery.env_error(endless) from None

    # First come, first served.

    def send(self, actions: Any, slots: Any = None) -> None:
        """Step some slots and return at once; `recv` brings the results of those that finish first.

        Args:
            actions: one action per slot of `slots`.
            slots: which slots, None for all. Usually `info["env_id"]` of the last `recv`.

        Raises:
            ActionError: the actions do not fit; nothing was stepped.
        """
        with self._turns:
            if self._turns.pending is not Pending.NOTHING:  # slots of an earlier `send` may be in flight
                self._turns.require_idle("send")
            self._turns.need_reset()
            chosen = checks.slot_indices(slots, self.num_envs, name="slots")
            busy = self._engine.gather.pending(chosen)
            if len(busy):
                raise ConfigError(f"slot {busy[0]} has an unfinished send. Take it with recv() before you send again.")
            if self.autoreset_mode is AutoresetMode.DISABLED:
                checks.refuse_finished(self._engine.arena, chosen)
            checks.refuse_part_of_block(self._whole_blocks, chosen)
            objects = self._actions.put(actions, chosen, len(chosen))
            self._engine.send(chosen, objects)

    def recv(
        self,
        min_slots: int = 1,
        timeout: float | None = None,
        *,
        max_slots: int | None = None,
        linger: float | None = None,
    ) -> StepResult:
        """Wait until at least `min_slots` slots that were sent have finished, and return all that have.

        Slots that were sent first come first, so none is passed over.

        Args:
            min_slots: how many to wait for.
            timeout: in seconds; None means that only `timeouts.step_s` bounds the wait.
            max_slots: return at most this many; the others come with the next `recv`.
            linger: once `min_slots` have finished, wait for `max_slots` (or all that are in flight) this much longer,
                in seconds.

        Returns:
            As `step`, with one row per finished slot; `infos["env_id"]` says which slot each row is.

        Raises:
            multiprocessing.TimeoutError: too few in time; nothing is lost, call `recv` again.

        Example:
            >>> import clusterenv
            >>> envs = clusterenv.make_vec("CartPole-v1", num_envs=4, cluster="inproc")
            >>> _ = envs.reset(seed=0)
            >>> envs.send([0, 1, 0, 1])
            >>> observations, rewards, terminated, truncated, infos = envs.recv(min_slots=2)
            >>> infos["env_id"]
            array([0, 1, 2, 3])
            >>> envs.close()
        """
        with self._turns:
            in_flight = self._engine.gather.in_flight if self._turns.pending is Pending.NOTHING else 0
            if not in_flight:
                raise NoAsyncCallError("Calling `recv` without any prior call to `send`.", "send")
            checks.slot_counts(min_slots, max_slots, in_flight)
            full = in_flight if max_slots is None else min(int(max_slots), in_flight)
            linger_s = 0.0 if linger is None else checks.wait_limit(linger, "linger") or 0.0
            slots, report = self._engine.receive(int(min_slots), full, checks.wait_limit(timeout), linger_s)
            arena = self._engine.arena
            infos = select(self._infos(report, "step"), slots) if report else {}
            infos["env_id"] = slots
            rewards = arena.reward[slots]
            self._warned_reward = self._warned_reward or checks.warn_of_bad_rewards(rewards, slots)
            return (
                self._engine.observations.of(slots),
                rewards,
                arena.terminated[slots],
                arena.truncated[slots],
                infos,
            )

    # What the environments show.

    def render(self) -> tuple[Any, ...] | None:
        """What each environment renders."""
        return self.call("render")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random number generators of the environments; of workers, copies."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of the environments."""
        return self.get_attr("np_random_seed")

    # The rest.

    def worker_pids(self) -> list[int | None]:
        """The process of each worker, None where one is being replaced."""
        return self._engine.node.pids()

    @property
    def workers_ready(self) -> int:
        """How many workers are not lost, as far as is known. Any thread may ask."""
        return self._engine.workers_ready

    @property
    def network_bytes(self) -> dict[str, int]:
        """Bytes of messages so far, "received" from nodes on other hosts and "sent" to them. Any thread may ask."""
        return self._engine.node.network_bytes._asdict()

    @property
    def restarts(self) -> int:
        """How many workers were lost and started afresh. Any thread may ask."""
        return self._engine.recovery.restarts

    def node_logs(self) -> dict[str, str]:
        """The last lines that each node has written, its workers and environments included. Any thread may ask.

        The names are those of the launcher: "node 0" for `tcp`, `ray` and `slurm` (there also "job", for the lines of
        no node), hosts for `ssh`, pods for Kubernetes. Of each there are some kilobytes at most.

        Raises:
            ConfigError: nobody keeps them: on this host environments write to the output of this process, and what
                nodes write that were started by hand (`join`) stays on their machines.

        Example:
            >>> for name, lines in envs.node_logs().items():  # doctest: +SKIP
            ...     print(name, lines)
        """
        self._turns.require_open()
        return self._engine.node.logs()

    def as_sb3(self) -> Any:
        """This batch as a Stable-Baselines3 `VecEnv`. Needs `autoreset_mode="SameStep"`."""
        from clusterenv.env.adapters.sb3 import as_sb3

        return as_sb3(self)

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """End every worker. Works after any fault, and while another thread is in a call, which then raises.

        Args:
            timeout: how long the environments may take to close, in seconds; None means `timeouts.close_s`.
            terminate: do not wait for the environments at all.
            **kwargs: ignored, as Gymnasium passes what its wrappers do not know.
        """
        if not hasattr(self, "_finalizer"):  # the constructor raised
            return
        limit = 0.0 if terminate else self._timeouts.close_s if timeout is None else checks.wait_limit(timeout)
        self._turns.take_last()
        self._stop_playing()
        self._engine.node.close(limit)
        self._let_go()
        self._finalizer.detach()
        pending, self._turns.pending = self._turns.pending, Pending.NOTHING
        if pending is not Pending.NOTHING:  # said last: where warnings are errors, it raises
            self.closed = True
            gymnasium.logger.warn(f"Calling `close` while waiting for a pending call to `{pending.value}` to complete.")

    def __enter__(self) -> ClusterEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise ConfigTypeError(
            "a ClusterEnv cannot be pickled or copied: it owns processes. Pass the arguments of make_vec instead."
        )
