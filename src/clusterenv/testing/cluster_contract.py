"""The contract of clusters: whatever carries the messages, a batch must answer as if it were in this process."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from clusterenv.env.make import make_vec
from clusterenv.errors import ClusterEnvError, EnvError, WorkerLost
from clusterenv.testing import processes
from clusterenv.testing.contracts import ContractBroken, require, runs_here, wait_for
from clusterenv.testing.echo import echo_module, echo_slots
from clusterenv.testing.history import History, check_history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterenv.config import Cluster
    from clusterenv.env.vector import ClusterEnv

_NUM_ENVS = 4
_ECHO, _CHAOS, _CART_POLE = "clusterenv.testing:Echo-v0", "clusterenv.testing:Chaos-v0", "CartPole-v1"


class ClusterContract:
    """What a batch must keep, on any cluster. Each `test_` method is a test of pytest's, and needs nothing of pytest's.

    Attributes:
        cluster: where the environments run, as for `make_vec`. It must have two workers or more to lose one.
        limit_s: how long the cluster may take for anything.

    Example:
        >>> class TestMine(ClusterContract):
        ...     cluster = "inproc:2"
        >>> TestMine().test_the_answers_are_those_of_one_process()
    """

    cluster: str | Cluster = ""
    limit_s: float = 60.0

    def make(self, env_id: str, num_envs: int, **kwargs: Any) -> ClusterEnv:
        """A batch on this cluster. Yours to write if `make_vec` cannot make it."""
        require(self.cluster, "cluster of this contract is to be written: name the cluster that is tested.")
        return make_vec(env_id, num_envs, cluster=self.cluster, **kwargs)

    def workers(self, envs: ClusterEnv) -> list[int]:
        """The processes of the workers; none means that none can be killed. Yours to write if they run elsewhere."""
        return [pid for pid in envs.worker_pids() if pid is not None and pid != os.getpid()]

    def kill(self, pid: int) -> None:
        """Kill a worker. Yours to write if they run elsewhere."""
        processes.kill(pid)

    def runs(self, pid: int) -> bool:
        """Whether a process runs. Yours to write if they run elsewhere."""
        return runs_here(pid)

    # Values.

    def test_the_answers_are_those_of_one_process(self) -> None:
        """The same seed gives what `SyncVectorEnv` gives, bit for bit."""
        with (
            contextlib.closing(SyncVectorEnv([lambda: gymnasium.make(_CART_POLE)] * _NUM_ENVS)) as reference,
            self._open(_CART_POLE) as envs,
        ):
            expected, found = reference.reset(seed=3)[0], envs.reset(seed=3)[0]
            require(np.array_equal(expected, found), f"reset(seed=3) gives {found}, in place of {expected}")
            dice = np.random.default_rng(3)
            for number in range(60):
                actions = dice.integers(2, size=_NUM_ENVS)
                for name, one, other in zip(
                    ("observation", "reward", "terminated", "truncated"),
                    reference.step(actions),
                    envs.step(actions),
                    strict=False,
                ):
                    require(np.array_equal(one, other), f"{name} of step {number} is {other}, in place of {one}")

    def test_every_transition_is_there_once_and_in_its_slot(self) -> None:
        """In steps of all, and first come first served."""
        with self._echo() as (envs, history):
            for number in range(30):
                self._step(envs, history, number)
            for _ in range(20):
                actions = np.arange(_NUM_ENVS)
                envs.send(actions)
                left = _NUM_ENVS
                while left:
                    result = envs.recv(min_slots=1, timeout=self.limit_s)
                    history.step(actions, result)
                    left -= len(result[4]["env_id"])
            _check(history)

    def test_calls_reach_their_slots(self) -> None:
        """`get_attr`, `set_attr` and `call` answer in the order of the slots."""
        with self._open(_CART_POLE) as envs:
            envs.set_attr("gravity", [1.0, 2.0, 3.0, 4.0])
            found = envs.get_attr("gravity")
            require(tuple(found) == (1.0, 2.0, 3.0, 4.0), f"attributes came back as {found}")

    def test_a_policy_acts_where_the_environments_are(self) -> None:
        """Rollouts and streams have true labels, and new versions arrive."""
        with self._echo() as (envs, history):
            policy = echo_module()
            envs.attach(policy, sync="on-change", seed=1)
            for _ in range(5):
                history.batch(envs.rollout(8))
                policy.number += 1
                envs.publish(policy)
            with envs.stream(4, slots=2) as stream:
                for _, batch in zip(range(20), stream, strict=False):
                    history.batch(batch)
            _check(history)
            newest = max(row.version for row in history)
            require(newest == policy.number, f"version {policy.number} never acted; the newest that did is {newest}")

    # Losses.

    def test_an_environment_that_raises_costs_its_own_slot(self) -> None:
        """And its error is told, with the slot."""
        slots: list[dict[str, Any]] = [{"at": {"raise": [3]}}, {}, {}, {}]
        with self._open(_CHAOS, slot_kwargs=slots) as envs:
            envs.reset(seed=1)
            for _ in range(3):
                _, _, _, truncated, infos = envs.step([0, 1, 0, 1])
            require(
                truncated.tolist() == [True, False, False, False], f"truncated is {truncated}, for a raise in slot 0"
            )
            require("planned" in str(infos.get("env_error")), f"the error is not told: {infos}")
            truncated = envs.step([0, 1, 0, 1])[3]
            require(not truncated.any(), f"the slot did not go on: {truncated}")
        with self._open(_CHAOS, slot_kwargs=slots, on_loss="raise") as envs:
            envs.reset(seed=1)
            _must_raise(EnvError, lambda: [envs.step([0, 1, 0, 1]) for _ in range(3)], "an environment that raises")

    def test_a_killed_worker_costs_its_own_slots(self) -> None:
        """They come back truncated and marked, and go on in fresh environments; the others lose no step."""
        with self._echo() as (envs, history):
            for number in range(3):
                pids = self.workers(envs)
                if not pids:
                    return  # nobody can be killed
                self.kill(pids[number % len(pids)])
                before = history.counts()["lost"]
                for _ in range(200):
                    self._step(envs, history, number)
                    if history.counts()["lost"] > before:
                        break
                lost = history.counts()["lost"] - before
                require(0 < lost < _NUM_ENVS, f"{lost} of {_NUM_ENVS} slots are marked after a worker was killed")
                for _ in range(10):
                    self._step(envs, history, number)
            _check(history)

    def test_a_killed_worker_is_raised_if_that_was_asked_for(self) -> None:
        """And a reset makes the batch whole."""
        with self._open(_ECHO, slot_kwargs=echo_slots(_NUM_ENVS), on_loss="raise") as envs:
            envs.reset(seed=1)
            pids = self.workers(envs)
            if not pids:
                return
            self.kill(pids[0])
            step = lambda: [envs.step(np.arange(_NUM_ENVS)) for _ in range(200)]  # noqa: E731
            _must_raise(WorkerLost, step, "a killed worker")
            envs.reset(seed=1)
            require(not envs.step(np.arange(_NUM_ENVS))[3].any(), "after a reset the batch is not whole")

    # The end.

    def test_close_leaves_nothing_and_may_be_repeated(self) -> None:
        """No worker is left, whatever is under way."""
        envs = self.make(_CART_POLE, _NUM_ENVS)
        try:
            envs.reset(seed=1)
            pids = self.workers(envs)
            envs.send(np.zeros(_NUM_ENVS, np.int64))
        finally:
            envs.close()
        envs.close()
        wait_for(lambda: not any(map(self.runs, pids)), self.limit_s, f"the workers {pids} should have ended")

    @contextlib.contextmanager
    def _open(self, env_id: str, **kwargs: Any) -> Iterator[ClusterEnv]:
        envs = self.make(env_id, _NUM_ENVS, **kwargs)
        try:
            yield envs
        finally:
            envs.close()

    @contextlib.contextmanager
    def _echo(self) -> Iterator[tuple[ClusterEnv, History]]:
        with self._open(_ECHO, slot_kwargs=echo_slots(_NUM_ENVS)) as envs:
            history = History(_NUM_ENVS)
            history.reset(envs.reset(seed=1)[0])
            yield envs, history

    def _step(self, envs: ClusterEnv, history: History, number: int) -> None:
        actions = np.arange(_NUM_ENVS) + number
        history.step(actions, envs.step(actions))


def _check(history: History) -> None:
    violations = check_history(history)
    require(not violations, f"{len(violations)} transitions cannot have been; the first: {violations[:1]}")


def _must_raise(kind: type[ClusterEnvError], act: Any, what: str) -> None:
    try:
        act()
    except kind:
        return
    raise ContractBroken(f"{what} did not raise {kind.__name__}, with on_loss='raise'")
