"""send and recv: first come, first served, without loss, mix-up or starvation."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import SyncVectorEnv

from clusterenv import ClusterEnv, WorkerLost
from clusterenv.errors import ActionError, ConfigError
from clusterenv.node.local import LocalNode
from tests.env.kit import LIMIT_S, GateEnv, SleepyEnv, SpaceEnv, WalkEnv, assert_same, gated
from tests.faults.interrupts import interrupted_at
from tests.faults.kit import hurried, patient, wait_for_answers
from tests.zoo import CountingEnv, counting, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    Make = Callable[..., ClusterEnv]


@pytest.fixture
def gate(tmp_path: pathlib.Path) -> pathlib.Path:
    """The file that gated environments wait for."""
    return tmp_path / "gate"


# The plain case.


def test_all_slots_come_back_once(make: Make) -> None:
    envs = make(counting(4, infos=True))
    envs.reset()
    envs.send([0, 1, 2, 1])
    got: list[int] = []
    while len(got) < 4:
        observations, rewards, terminated, truncated, infos = envs.recv()
        slots = infos["env_id"]
        assert len(observations) == len(rewards) == len(terminated) == len(truncated) == len(slots)
        np.testing.assert_array_equal(observations, [[slot, 1] for slot in slots])
        np.testing.assert_array_equal(rewards, np.array([0, 1, 2, 1])[slots])
        np.testing.assert_array_equal(infos["action"], np.array([0, 1, 2, 1])[slots])
        assert infos["_action"].all()
        got += slots.tolist()
    assert sorted(got) == [0, 1, 2, 3]
    with pytest.raises(NoAsyncCallError, match="`recv` without any prior call to `send`"):
        envs.recv()


def test_types_of_what_recv_returns(make: Make) -> None:
    envs = make(counting(3))
    envs.reset()
    envs.send([0, 1, 2], [0, 1, 2])
    observations, rewards, terminated, truncated, infos = envs.recv(min_slots=3)
    assert observations.dtype == np.float32
    assert rewards.dtype == np.float64
    assert terminated.dtype == truncated.dtype == np.bool_
    assert infos.keys() == {"env_id"}
    assert infos["env_id"].dtype.kind == "i"


@pytest.mark.parametrize("slots", [[2], 2, np.array([2]), (3, 0), np.array([1, 2], dtype=np.uint8)])
def test_slots_in_many_forms(make: Make, slots: Any) -> None:
    envs = make(counting(4))
    envs.reset()
    wanted = np.atleast_1d(slots)
    envs.send(np.ones(len(wanted), dtype=np.int64), slots)
    infos = envs.recv(min_slots=len(wanted))[4]
    assert sorted(infos["env_id"].tolist()) == sorted(wanted.tolist())
    assert envs.get_attr("life") == tuple(int(slot in wanted) for slot in range(4))


def test_actions_belong_to_the_slots_in_their_order(make: Make) -> None:
    envs = make(counting(4))
    envs.reset()
    envs.send([2, 0, 1], [3, 1, 0])
    _, rewards, _, _, infos = envs.recv(min_slots=3)
    assert dict(zip(infos["env_id"].tolist(), rewards.tolist(), strict=True)) == {3: 2.0, 1: 0.0, 0: 1.0}


def test_results_are_copies(make: Make) -> None:
    envs = make(counting(2))
    envs.reset()
    envs.send([1, 1])
    first = envs.recv(min_slots=2)
    kept = [np.copy(part) for part in first[:4]]
    envs.send([2, 2])
    envs.recv(min_slots=2)
    for part, before in zip(first[:4], kept, strict=True):
        np.testing.assert_array_equal(part, before)


# The same trajectories as step.


def replay(envs: ClusterEnv, steps: int, seed: int) -> dict[int, list[Any]]:
    """Step every slot `steps` times by send and recv, with the actions that `step` would take."""
    envs.action_space.seed(seed)
    observations, _ = envs.reset(seed=seed)
    actions = [envs.action_space.sample() for _ in range(steps)]
    seen: dict[int, list[Any]] = {slot: [observations[slot]] for slot in range(envs.num_envs)}
    taken = np.zeros(envs.num_envs, dtype=np.int64)
    envs.send(actions[0])
    while min(taken) < steps:
        observations, rewards, terminated, truncated, infos = envs.recv()
        slots = infos["env_id"]
        for row, slot in enumerate(slots.tolist()):
            info = {key: infos[key][row] for key in ("norm", "start") if key in infos and infos[f"_{key}"][row]}
            seen[slot].append((observations[row], rewards[row], terminated[row], truncated[row], info))
        taken[slots] += 1
        more = slots[taken[slots] < steps]
        if len(more):
            envs.send(np.stack([actions[taken[slot]][slot] for slot in more]), more)
    return seen


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_the_trajectories_are_those_of_step(make: Make, mode: str) -> None:
    ours = replay(make([WalkEnv] * 5, autoreset_mode=mode), 40, seed=6)
    theirs = SyncVectorEnv([WalkEnv] * 5, autoreset_mode=mode)
    theirs.action_space.seed(6)
    observations, _ = theirs.reset(seed=6)
    expected: dict[int, list[Any]] = {slot: [observations[slot]] for slot in range(5)}
    for _ in range(40):
        observations, rewards, terminated, truncated, infos = theirs.step(theirs.action_space.sample())
        for slot in range(5):
            info = {key: infos[key][slot] for key in ("norm", "start") if key in infos and infos[f"_{key}"][slot]}
            expected[slot].append((observations[slot], rewards[slot], terminated[slot], truncated[slot], info))
    assert_same(ours, expected)


def test_step_and_send_may_take_turns(make: Make) -> None:
    envs = make(counting(3))
    envs.reset()
    envs.step([1, 1, 1])
    envs.send([1, 1], [0, 2])
    envs.recv(min_slots=2)
    np.testing.assert_array_equal(envs.step([1, 1, 1])[0][:, 1], [3, 2, 3])


# First come, first served.


def test_a_slow_slot_does_not_hold_back_the_others(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [0]))
    envs.reset()
    envs.send([1] * 4)
    rounds = np.zeros(4, dtype=np.int64)
    while rounds[2:].min() < 20:
        slots = envs.recv()[4]["env_id"]
        assert 0 not in slots
        rounds[slots] += 1
        fast = slots[slots >= 2]  # slot 1 shares the worker with slot 0 and waits behind it
        if len(fast):
            envs.send(np.ones(len(fast), dtype=np.int64), fast)
    gate.touch()
    while rounds[:2].min() == 0:
        rounds[envs.recv()[4]["env_id"]] += 1
    np.testing.assert_array_equal(rounds[:2], [1, 1])


class LateGate(GateEnv):
    """Takes a few milliseconds for a step, and from the second on waits for the gate too."""

    def step(self, action: Any) -> Any:
        """Sleep; wait only the second time."""
        time.sleep(0.005)
        return super().step(action) if self.life else CountingEnv.step(self, action)


def _late_gate(slot: int, gate: pathlib.Path) -> Callable[[], LateGate]:
    return lambda: LateGate(slot, str(gate), "step" if slot == 3 else "")


def test_a_slow_slot_does_not_hold_back_those_before_it_on_its_worker(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local([_late_gate(slot, gate) for slot in range(4)], cluster="local:1")
    envs.reset()
    envs.send([1] * 4)
    envs.recv(min_slots=4)  # the worker learns how long a step takes
    envs.send([1] * 4)
    got = envs.recv(min_slots=3, timeout=LIMIT_S)[4]["env_id"]
    assert got.tolist() == [0, 1, 2]
    gate.touch()
    assert envs.recv()[4]["env_id"].tolist() == [3]


def test_turns_are_taken_in_order(make_here: Make) -> None:
    envs = make_here(counting(5, length=10**6))
    envs.reset()
    envs.send([1] * 5)
    order: list[int] = []
    for _ in range(50):
        slots = envs.recv(min_slots=1, max_slots=1)[4]["env_id"]
        order += slots.tolist()
        envs.send([1], slots)
    assert order == [0, 1, 2, 3, 4] * 10, "all are ready all the time, so each waits for all others"


def test_no_slot_starves(make_local: Make) -> None:
    envs = make_local([_sleepy(slot, 0.005 if slot == 1 else 0.0) for slot in range(6)])
    envs.reset()
    envs.send([1] * 6)
    turns = np.zeros(6, dtype=np.int64)
    while turns.min() < 15:  # ends, because nobody is passed over for ever
        slots = envs.recv(min_slots=1, max_slots=1)[4]["env_id"]
        turns[slots] += 1
        envs.send([1], slots)
    np.testing.assert_array_equal(np.sort(envs.recv(min_slots=6)[4]["env_id"]), np.arange(6))
    assert envs.get_attr("life") == tuple((turns + 1).tolist())


def _sleepy(slot: int, seconds: float) -> Callable[[], SleepyEnv]:
    return lambda: SleepyEnv(slot, seconds, length=10**6)


def test_slots_that_were_sent_first_come_first(make: Make) -> None:
    envs = make(counting(4))
    envs.reset()
    for slot in (2, 0, 3, 1):
        envs.send([1], [slot])
    assert envs.recv(min_slots=4)[4]["env_id"].tolist() == [2, 0, 3, 1]


# min_slots, max_slots, timeout.


@pytest.mark.parametrize("least", [1, 2, 3, 4])
def test_min_slots_is_the_least(make: Make, least: int) -> None:
    envs = make(counting(4))
    envs.reset()
    envs.send([1] * 4)
    assert len(envs.recv(min_slots=least)[4]["env_id"]) >= least


def test_max_slots_is_the_most_and_the_rest_waits(make: Make) -> None:
    envs = make(counting(4, infos=True))
    envs.reset()
    envs.send([0, 1, 2, 1])
    got: list[int] = []
    for most in (1, 2, 1):
        observations, rewards, _, _, infos = envs.recv(min_slots=most, max_slots=most)
        slots = infos["env_id"]
        assert len(slots) == len(rewards) == most
        np.testing.assert_array_equal(observations[:, 0], slots)
        np.testing.assert_array_equal(infos["action"], np.array([0, 1, 2, 1])[slots])
        got += slots.tolist()
    assert sorted(got) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "arguments",
    [
        {"min_slots": 0},
        {"min_slots": -1},
        {"min_slots": 3},
        {"min_slots": 1.5},
        {"min_slots": None},
        {"min_slots": 2, "max_slots": 1},
        {"max_slots": 0},
        {"timeout": -1.0},
        {"timeout": "1"},
        {"timeout": float("nan")},
    ],
)
def test_wrong_arguments_of_recv_are_refused(make_here: Make, arguments: dict[str, Any]) -> None:
    envs = make_here(counting(4))
    envs.reset()
    envs.send([1, 1], [0, 3])
    with pytest.raises(ConfigError):
        envs.recv(**arguments)
    assert envs.recv(min_slots=2)[4]["env_id"].tolist() == [0, 3], "nothing was lost"


def test_a_late_recv_loses_nothing(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [3], infos=True))
    envs.reset()
    envs.send([0, 1, 2, 1])
    with pytest.raises(multiprocessing.TimeoutError, match=r"recv: [0-3] of min_slots=4 slots were ready within 0.3 s"):
        envs.recv(min_slots=4, timeout=0.3)
    gate.touch()
    observations, rewards, _, _, infos = envs.recv(min_slots=4)
    order = infos["env_id"]
    assert sorted(order.tolist()) == [0, 1, 2, 3]
    np.testing.assert_array_equal(observations, [[slot, 1] for slot in order])
    np.testing.assert_array_equal(rewards, np.array([0, 1, 2, 1])[order])
    np.testing.assert_array_equal(infos["action"], np.array([0, 1, 2, 1])[order])


def test_recv_may_ask_without_waiting(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(2, gate, [0]))
    envs.reset()
    envs.send([1, 1])
    with pytest.raises(multiprocessing.TimeoutError):
        envs.recv(min_slots=2, timeout=0.001)
    gate.touch()
    envs.recv(min_slots=2)


def test_a_slot_that_hangs_is_lost_after_the_limit_of_the_batch(make_local: Make, gate: pathlib.Path) -> None:
    envs = make_local(gated(4, gate, [3]), on_loss="raise", timeouts=patient())
    envs.reset()
    envs.send([1] * 4)
    wait_for_answers(envs, 0)
    with hurried(envs, seconds=0.2), pytest.raises(WorkerLost, match=r"worker 1 .*within 0.2 s"):
        envs.recv(min_slots=4)
    gate.touch()
    envs.reset()
    np.testing.assert_array_equal(envs.step([1] * 4)[0][:, 1], [1] * 4)


# What is refused.


def test_nothing_else_starts_while_slots_are_in_flight(make: Make) -> None:
    envs = make(counting(4))
    envs.reset()
    envs.send([1, 1], [0, 3])
    starts: dict[str, Callable[[], Any]] = {
        "step": lambda: envs.step([1] * 4),
        "step_async": lambda: envs.step_async([1] * 4),
        "call": lambda: envs.call("slot"),
        "call_async": lambda: envs.call_async("slot"),
        "set_attr": lambda: envs.set_attr("slot", 1),
        "reset_async": envs.reset_async,
    }
    for name, start in starts.items():
        with pytest.raises(AlreadyPendingCallError, match=f"`{name}`.*`send`.*2 slots.*`recv`.*`reset`") as caught:
            start()
        assert caught.value.name == "send"
    with pytest.raises(NoAsyncCallError):
        envs.step_wait()
    envs.recv(min_slots=2)
    np.testing.assert_array_equal(envs.step([1] * 4)[0][:, 1], [2, 1, 1, 2])


def test_a_slot_in_flight_cannot_be_sent_again(make: Make) -> None:
    envs = make(counting(4))
    envs.reset()
    envs.send([1, 1], [0, 3])
    with pytest.raises(ConfigError, match="slot 3 has an unfinished send"):
        envs.send([1, 1], [1, 3])
    assert envs.recv(min_slots=2)[4]["env_id"].tolist() == [0, 3]
    assert envs.get_attr("life") == (1, 0, 0, 1)


@pytest.mark.parametrize("slots", [[4], [-1], [0, 0], [], [0.5], "0", [[0]], [True]])
def test_wrong_slots_are_refused(make_here: Make, slots: Any) -> None:
    envs = make_here(counting(4))
    envs.reset()
    with pytest.raises(ConfigError, match="slots"):
        envs.send([1], slots)
    assert envs.get_attr("life") == (0, 0, 0, 0)


@pytest.mark.parametrize("actions", [[1], [1, 1, 1], [1, 5], [1.0, 1.0], [[1], [1]]])
def test_wrong_actions_are_refused(make_here: Make, actions: Any) -> None:
    envs = make_here(counting(4))
    envs.reset()
    with pytest.raises(ActionError):
        envs.send(actions, [0, 1])
    assert envs.get_attr("life") == (0, 0, 0, 0)
    with pytest.raises(NoAsyncCallError):
        envs.recv()


def test_recv_before_any_send(make: Make) -> None:
    envs = make(counting(2))
    with pytest.raises(NoAsyncCallError) as caught:
        envs.recv()
    assert caught.value.name == "send"


@pytest.mark.parametrize("masked", [False, True])
def test_a_reset_gives_up_what_is_in_flight(make: Make, masked: bool) -> None:
    envs = make(counting(4, infos=True))
    envs.reset()
    envs.send([2, 2], [0, 3])
    options = {"reset_mask": np.ones(4, dtype=np.bool_)} if masked else None
    observations, infos = envs.reset(seed=3, options=options)
    np.testing.assert_array_equal(observations, [[0, 0], [1, 0], [2, 0], [3, 0]])
    assert infos.keys() == {"started", "_started"}
    with pytest.raises(NoAsyncCallError):
        envs.recv()
    infos = envs.step([1] * 4)[4]
    np.testing.assert_array_equal(infos["action"], [1] * 4)


def test_a_masked_reset_does_not_swallow_the_results_of_others(make: Make) -> None:
    envs = make(counting(4, length=1))
    envs.reset()
    envs.send([1] * 4)
    try:
        envs.reset(options={"reset_mask": np.array([True, False, False, False])})
    except (ConfigError, AlreadyPendingCallError):  # refused: they can still be received
        assert envs.recv(min_slots=4)[2].all()
        return
    _, _, terminated, truncated, _ = envs.step([1] * 4)
    assert (terminated | truncated)[1:].all(), "three episodes have ended and nobody was told"


# Spaces that fit no array.


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Dict(a=spaces.Text(2), b=spaces.Discrete(3))])
def test_object_observations(make: Make, space: Any) -> None:
    factories = [lambda: SpaceEnv(space)] * 3
    envs, theirs = make(factories), SyncVectorEnv(factories)
    envs.reset(seed=2)
    theirs.reset(seed=2)
    expected = theirs.step(np.zeros(3, dtype=np.int64))[0]
    envs.send([0, 0, 0])
    assert_same(envs.recv(min_slots=3)[0], expected)


def test_object_actions_reach_their_slots_in_any_order(make: Make) -> None:
    envs = make([lambda: SpaceEnv(spaces.Discrete(3), spaces.Text(5))] * 4)
    envs.reset(seed=2)
    envs.send(("d", "b"), [3, 1])
    envs.send(("a",), [0])
    envs.send(("c",), [2])
    got: dict[int, str] = {}
    while len(got) < 4:
        infos = envs.recv()[4]
        got |= dict(zip(infos["env_id"].tolist(), infos["got"], strict=True))
    assert got == {slot: f"str:'{letter}'" for slot, letter in enumerate("abcd")}


class GatedText(SpaceEnv):
    """Text actions, and a gate in slot 0."""

    def __init__(self, slot: int, gate: pathlib.Path) -> None:
        super().__init__(spaces.Discrete(3), spaces.Text(5), slot, length=100)
        self.gate = gate

    def step(self, action: Any) -> Any:
        """Wait for the gate in slot 0."""
        if self.slot == 0:
            wait_until(self.gate.exists, LIMIT_S)
        return super().step(action)


def _gated_text(slot: int, gate: pathlib.Path) -> Callable[[], GatedText]:
    return lambda: GatedText(slot, gate)


def test_object_actions_sent_while_their_worker_is_busy(make_local: Make, gate: pathlib.Path) -> None:
    factories = [_gated_text(slot, gate) for slot in range(4)]
    envs = make_local(factories, cluster="local:1", on_loss="raise")
    envs.reset(seed=2)
    for slot, letter in enumerate("abcd"):
        envs.send((letter,), [slot])
    gate.touch()
    infos = envs.recv(min_slots=4)[4]
    got = dict(zip(infos["env_id"].tolist(), infos["got"], strict=True))
    assert got == {slot: f"str:'{letter}'" for slot, letter in enumerate("abcd")}


# Vectorised blocks.


def vector_block(count: int) -> SyncVectorEnv:
    return SyncVectorEnv(counting(count, infos=True))


def test_a_vectorised_block_is_sent_whole(cluster: str) -> None:
    with ClusterEnv.from_blocks(vector_block, 4, cluster="inproc:2" if cluster == "inproc" else cluster) as envs:
        envs.reset()
        with pytest.raises(ConfigError, match="slots 2 to 3 are one vectorised environment"):
            envs.send([1, 1, 1], [0, 1, 2])
        envs.send([2, 1], [2, 3])
        _, rewards, _, _, infos = envs.recv(min_slots=2)
        assert infos["env_id"].tolist() == [2, 3]
        np.testing.assert_array_equal(rewards, [2, 1])
        np.testing.assert_array_equal(infos["action"], [2, 1])


def test_the_infos_of_a_vectorised_block_may_come_in_parts(cluster: str) -> None:
    with ClusterEnv.from_blocks(vector_block, 4, cluster="inproc:2" if cluster == "inproc" else cluster) as envs:
        envs.reset()
        envs.send([0, 1, 2, 1])
        got: dict[int, int] = {}
        for most in (1, 2, 1):
            infos = envs.recv(min_slots=most, max_slots=most)[4]
            assert infos["_action"].all()
            got |= dict(zip(infos["env_id"].tolist(), infos["action"].tolist(), strict=True))
        assert got == {0: 0, 1: 1, 2: 2, 3: 1}


# A batch that is waited for.


def test_lingering_waits_for_the_others(make_local: Make) -> None:
    envs = make_local([lambda: SleepyEnv(0, 0.0), lambda: SleepyEnv(1, 0.2)])
    envs.reset()
    envs.send([0, 0])
    assert envs.recv(max_slots=2, linger=LIMIT_S)[4]["env_id"].tolist() == [0, 1]


def test_lingering_ends_when_all_in_flight_are_there(make: Make) -> None:
    envs = make(counting(4))
    envs.reset()
    envs.send([0, 0], [1, 2])
    assert envs.recv(max_slots=4, linger=10 * LIMIT_S)[4]["env_id"].tolist() == [1, 2]


def test_lingering_ends_at_its_limit(make_local: Make, gate: pathlib.Path) -> None:
    """Whoever is late comes with the next recv."""
    envs = make_local(gated(2, gate, slots=(1,)))
    envs.reset()
    envs.send([0, 0])
    assert envs.recv(linger=0.05)[4]["env_id"].tolist() == [0]
    gate.touch()
    assert envs.recv()[4]["env_id"].tolist() == [1]


@pytest.mark.parametrize("linger", [-1.0, "a", float("nan")])
def test_no_time_to_linger(make_here: Make, linger: Any) -> None:
    envs = make_here(counting(2))
    envs.reset()
    envs.send([0, 0])
    with pytest.raises(ConfigError, match="linger="):
        envs.recv(linger=linger)
    assert len(envs.recv(min_slots=2, linger=0)[0]) == 2


# Ctrl-C.


@pytest.mark.parametrize("then", ["recv", "send"])
def test_slots_that_nobody_was_asked_for_are_asked_for_again(make_local: Make, then: str) -> None:
    envs = make_local(counting(4))
    envs.reset(seed=0)
    with interrupted_at(LocalNode, "request", 1):
        envs.send([1] * 3, [0, 1, 2])
    if then == "send":
        envs.send([1], [3])
    count = envs._engine.gather.in_flight
    observations, _, _, _, infos = envs.recv(min_slots=count, timeout=LIMIT_S)
    assert sorted(infos["env_id"].tolist()) == list(range(count))
    assert observations[:, 1].tolist() == [1] * count
