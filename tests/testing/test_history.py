"""Histories: a sound batch is found sound in every way of asking, and every planted error is found."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import clusterenv
from clusterenv.errors import ConfigError
from clusterenv.testing import EchoEnv, EchoPolicy, History, check_history, echo_module, echo_slots
from tests.faults.kit import kill

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    from clusterenv import Batch, ClusterEnv

NUM_ENVS = 4
ECHO, CHAOS = "clusterenv.testing:Echo-v0", "clusterenv.testing:Chaos-v0"
RAISING = {"env_id": "Echo-v0", "chances": {"raise": 0.02}}


@contextlib.contextmanager
def echoes(cluster: str = "inproc:2", mode: str = "NextStep", **kwargs: Any) -> Iterator[ClusterEnv]:
    kwargs.setdefault("slot_kwargs", echo_slots(NUM_ENVS))
    made = clusterenv.make_vec(
        kwargs.pop("id", ECHO), NUM_ENVS, cluster=cluster, vector_kwargs={"autoreset_mode": mode}, **kwargs
    )
    with made as envs:
        yield envs


def raising(cluster: str, mode: str = "NextStep") -> contextlib.AbstractContextManager[ClusterEnv]:
    """Environments that raise now and then."""
    slots = [{"env_kwargs": each} for each in echo_slots(NUM_ENVS)]
    return echoes(cluster, mode, id=CHAOS, slot_kwargs=slots, **RAISING)


def begun(envs: ClusterEnv, mode: str = "NextStep") -> History:
    history = History(NUM_ENVS, mode)
    history.reset(envs.reset(seed=1)[0])
    return history


def actions_of(turn: int) -> Any:
    return (np.arange(NUM_ENVS) * 7 + turn) % 64


def stepped(envs: ClusterEnv, history: History, steps: int) -> None:
    for turn in range(steps):
        history.step(actions_of(turn), envs.step(actions_of(turn)))


def received(envs: ClusterEnv, history: History, turns: int) -> None:
    asked = actions_of(0)
    envs.send(asked)
    for turn in range(turns):
        result = envs.recv(min_slots=1, max_slots=3)
        history.step(asked, result)
        slots = result[4]["env_id"]
        asked[slots] = (asked[slots] + turn) % 64
        envs.send(asked[slots], slots)
    history.step(asked, envs.recv(min_slots=NUM_ENVS))


def played(envs: ClusterEnv, policy: Any, count: int, *, stream: bool) -> list[Batch]:
    batches = []
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(envs.stream(5, 3)) if stream else iter(lambda: envs.rollout(7), None)
        for batch in source:
            batches.append(batch)
            policy.number += 1
            assert envs.publish(policy).number == policy.number
            if len(batches) == count:
                return batches
    raise AssertionError("unreachable")


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("cluster", ["inproc:2", "local:2"])
def test_steps(cluster: str, mode: str) -> None:
    with echoes(cluster, mode) as envs:
        history = begun(envs, mode)
        for turn in range(60):
            result = envs.step(actions_of(turn))
            history.step(actions_of(turn), result)
            ended = result[2] | result[3]
            if mode == "Disabled" and ended.any():
                history.reset(envs.reset(options={"reset_mask": ended})[0], np.flatnonzero(ended))
    assert check_history(history) == []
    counts = history.counts()
    assert counts["start" if mode == "Disabled" else "reset"] >= 8
    assert counts["step"] >= 200


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_environments_that_raise(mode: str) -> None:
    with raising("local:2", mode) as envs:
        history = begun(envs, mode)
        stepped(envs, history, 200)
        received(envs, history, 50)
    assert check_history(history) == []
    assert history.counts()["lost"] > 3


def test_first_come_first_served() -> None:
    with echoes("local:2") as envs:
        history = begun(envs)
        received(envs, history, 200)  # of one slot each, if the workers are slow
    assert check_history(history) == []
    assert history.counts()["step"] > 100


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("make", [EchoPolicy, echo_module])
def test_policies_on_workers(make: Callable[[], Any], stream: bool) -> None:
    with raising("local:2") as envs:
        history = begun(envs)
        policy = make()
        envs.attach(policy, sync="on-change", seed=1)
        for batch in played(envs, policy, 100 if stream else 40, stream=stream):
            history.batch(batch)
    assert check_history(history) == []
    table = history.table
    assert len(np.unique(table["version"][table["version"] >= 0])) > 5
    assert history.counts()["lost"] > 3


def test_everything_in_turn() -> None:
    with echoes("local:2") as envs:
        history = begun(envs)
        policy = EchoPolicy()
        envs.attach(policy, sync="on-change", seed=1)
        for _ in range(3):
            stepped(envs, history, 15)
            for batch in played(envs, policy, 3, stream=False):
                history.batch(batch)
            received(envs, history, 15)
            for batch in played(envs, policy, 6, stream=True):
                history.batch(batch)
            history.cut()
            observations, _ = envs.reset(options={"reset_mask": np.array([True, False, True, False])})
            history.reset(observations, np.array([0, 2]))
    assert check_history(history) == []
    assert history.counts()["cut"] == 12


def test_a_worker_that_is_killed() -> None:
    with echoes("local:2") as envs:
        history = begun(envs)
        stepped(envs, history, 20)
        kill(envs, 0)
        stepped(envs, history, 20)
        policy = EchoPolicy()
        envs.attach(policy, sync="on-change", seed=1)
        for batch in played(envs, policy, 3, stream=False):
            history.batch(batch)
        kill(envs, 1)
        for batch in played(envs, policy, 3, stream=False):
            history.batch(batch)
    assert check_history(history) == []
    counts = history.counts()
    assert (counts["lost"], counts["fresh"]) == (2, 2)


# Planted errors: what a broken cluster would do to the answers of a sound one.


def kinds(history: History) -> set[str]:
    return {violation.kind for violation in check_history(history)}


class StepsTwice(EchoEnv):
    """As if a request was carried out twice."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._step == 3:
            super().step(action)
        return super().step(action)


class Forgets(EchoEnv):
    """As if a worker had been restarted without a word."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._step == 3:
            self._build += 1
        return super().step(action)


class Restarts(EchoEnv):
    """As if an episode had been begun afresh without a word."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._step == 3:
            self.reset()
        return super().step(action)


class Ends(EchoEnv):
    """As if a flag had been lost."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:2], False, False, {}


class Deaf(EchoEnv):
    """As if the action of an earlier step had been used."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return super().step(5)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (EchoEnv, set()),
        (StepsTwice, {"double step"}),
        (Forgets, {"gap"}),
        (Restarts, {"gap"}),
        (Ends, {"wrong flag"}),
        (Deaf, {"wrong action"}),
    ],
)
@pytest.mark.parametrize("detached", [False, True])
def test_a_broken_environment_is_found(kind: type[EchoEnv], found: set[str], detached: bool) -> None:
    envs = clusterenv.ClusterEnv([functools.partial(kind, slot) for slot in range(NUM_ENVS)], cluster="inproc:2")
    with envs:
        history = begun(envs)
        if detached:
            policy = EchoPolicy()
            envs.attach(policy, sync="on-change", seed=1)
            for batch in played(envs, policy, 8, stream=False):
                history.batch(batch)
        else:
            stepped(envs, history, 40)
    assert kinds(history) == found


Steps = list[tuple[Any, tuple[Any, ...]]]


def swap_slots(steps: Steps) -> Steps:
    def swapped(result: tuple[Any, ...]) -> tuple[Any, ...]:
        return result[0][[1, 0, 2, 3]], *result[1:]

    return [*steps[:9], (steps[9][0], swapped(steps[9][1])), *steps[10:]]


def repeat(steps: Steps) -> Steps:
    return [*steps[:5], steps[4], *steps[5:]]


def drop(steps: Steps) -> Steps:
    return [*steps[:5], *steps[6:]]


def old_again(steps: Steps) -> Steps:
    return [*steps[:30], *steps[2:4], *steps[30:]]


@pytest.mark.parametrize(
    ("tamper", "found"),
    [
        (swap_slots, "other slot"),
        (repeat, "repeated"),
        (drop, "double step"),  # a lost answer and a doubled step look the same from here
        (old_again, "repeated"),
    ],
)
def test_answers_that_are_tampered_with(tamper: Callable[[Steps], Steps], found: str) -> None:
    with echoes() as envs:
        history = begun(envs)
        steps = [(actions_of(turn), envs.step(actions_of(turn))) for turn in range(40)]
    for actions, result in tamper(steps):
        history.step(actions, result)
    assert found in kinds(history)


def with_label(batch: Batch) -> Batch:
    version = batch.version.copy()
    version[3, 1] += 1
    return dataclasses.replace(batch, version=version)


def with_marks(batch: Batch) -> Batch:
    return dataclasses.replace(batch, worker_lost=np.ones(batch.N, np.bool_))


def without_change(batch: Batch) -> Batch:
    return batch


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("order", "change", "found"),
    [
        ([2, 3, 4, 5, 6], without_change, set()),
        ([2, 3, 3, 4, 5, 6], without_change, {"repeated"}),
        ([2, 4, 5, 6], without_change, {"gap"}),
        ([3, 2, 4, 5, 6], without_change, {"gap", "repeated", "version went back"}),
        ([2, 3, 4, 5, 6], with_label, {"wrong version"}),
        ([2, 3, 4, 5, 6], with_marks, {"wrong mark"}),
    ],
)
def test_batches_that_are_tampered_with(
    order: list[int], change: Callable[[Batch], Batch], found: set[str], stream: bool
) -> None:
    with echoes() as envs:
        history = begun(envs)
        policy = EchoPolicy()
        envs.attach(policy, sync="on-change", seed=1)
        batches = played(envs, policy, 10, stream=stream)
    for index in [0, 1, *order, 7, 8, 9]:
        history.batch(change(batches[index]) if index == 3 else batches[index])
    assert found <= kinds(history)
    assert found or not kinds(history)


def test_a_version_that_nobody_has_published_yet() -> None:
    """The policy says so, too: an action of the future is wrong, whatever its label."""
    with echoes() as envs:
        history = begun(envs)
        policy = EchoPolicy()
        envs.attach(policy, sync="on-change", seed=1)
        (batch,) = played(envs, policy, 1, stream=False)
    history.batch(dataclasses.replace(batch, lag=batch.lag - 1))
    assert "wrong version" in kinds(history)


def test_a_policy_that_goes_back() -> None:
    with echoes() as envs:
        history = begun(envs)
        policy = EchoPolicy()
        policy.number = 5
        envs.attach(policy, sync="never", seed=1)
        labelled = [dataclasses.replace(envs.rollout(3), version=np.full((3, NUM_ENVS), 5)) for _ in range(2)]
        policy.number = 4
        envs.attach(policy, sync="never", seed=1)
        labelled.append(dataclasses.replace(envs.rollout(3), version=np.full((3, NUM_ENVS), 4)))
        for batch in labelled:
            history.batch(dataclasses.replace(batch, lag=np.full((3, NUM_ENVS), 9)))
    assert kinds(history) == {"version went back"}


def test_half_an_update_is_found() -> None:
    """The choice of one version with the bits of another."""
    policy = EchoPolicy()
    policy.number = 1
    new = policy.weights()
    policy.number = 0
    half = {**policy.weights(), "bits": new["bits"]}
    with echoes() as envs:
        history = begun(envs)
        policy.weights = lambda: half  # type: ignore[method-assign]
        envs.attach(policy, sync="never", seed=1)
        history.batch(envs.rollout(3))
    assert kinds(history) == {"wrong version"}


def test_a_loss_without_its_flag() -> None:
    with echoes() as envs:
        history = begun(envs)
        observations, rewards, terminated, truncated, infos = envs.step(actions_of(1))
        marks = np.array([True, False, False, False])
        history.step(actions_of(1), (observations, rewards, terminated, truncated, {**infos, "_worker_lost": marks}))
    assert kinds(history) == {"wrong flag"}


def test_a_history_survives_on_disk(tmp_path: pathlib.Path) -> None:
    with echoes() as envs:
        history = begun(envs)
        stepped(envs, history, 30)
    history.save(tmp_path / "history.npy")
    again = History.load(tmp_path / "history.npy")
    assert list(again) == list(history)
    assert len(again) == len(history) == NUM_ENVS * 31
    assert check_history(again) == []
    np.save(tmp_path / "other.npy", np.zeros(3))
    with pytest.raises(ConfigError, match="is no history"):
        History.load(tmp_path / "other.npy")


def test_the_echo_is_an_environment_like_others() -> None:
    env = gymnasium.make(ECHO, slot=2, length=3)
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    steps = 0
    terminated = False
    while not terminated:
        observation, _, terminated, _, _ = env.step(7)
        steps += 1
    assert steps == 7  # the longest: 3 + 1 + (2 + 1) % 5
    assert env.observation_space.contains(observation)
    assert AutoresetMode("NextStep") is AutoresetMode.NEXT_STEP


def test_the_module_and_the_policy_say_the_same() -> None:
    torch = pytest.importorskip("torch")
    policy, module = EchoPolicy(), echo_module()
    for number in (0, 1, 63, 64, 70_001):
        policy.number = module.number = number
        params, value, _ = policy.forward(policy.weights(), np.zeros((3, 6)), ())
        with torch.no_grad():
            others, other, _ = module(torch.zeros(3, 6, dtype=torch.int64))
        assert module.number == number
        assert np.array_equal(params, others.numpy())
        assert value.tolist() == other.tolist() == [number] * 3


def test_a_slot_that_comes_twice_in_a_batch_owes_its_reset_once() -> None:
    with echoes("inproc", slot_kwargs=echo_slots(NUM_ENVS, length=3)) as envs:
        history = begun(envs)
        turn = 0
        while not history._owes.any():
            history.step(actions_of(turn), envs.step(actions_of(turn)))
            turn += 1
        envs.attach(EchoPolicy(), sync="never", seed=1)
        one, two = envs.rollout(5), envs.rollout(5)
        columns = ("action", "reward", "terminated", "truncated", "version", "lag", "value", "obs")
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(one, name), getattr(two, name)], axis=1) for name in columns
        }
        at: Any = np.concatenate([one.final_at, (two.final_at[0], two.final_at[1] + NUM_ENVS)], axis=1)
        twice = dataclasses.replace(
            one,
            **joined,
            final_obs=np.concatenate([one.final_obs, two.final_obs]),
            final_at=(at[0], at[1]),
            slot=np.concatenate([one.slot, two.slot]),
            worker_lost=np.concatenate([one.worker_lost, two.worker_lost]),
        )
        history.batch(twice)
    assert check_history(history) == []
