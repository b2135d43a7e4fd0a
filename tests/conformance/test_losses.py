"""What is lost is seen, and costs nobody else: environments that raise, workers and whole nodes that are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clusterenv import EnvError, WorkerLost
from tests.conformance.kit import (
    FIRST,
    LIMIT_S,
    NUM_ENVS,
    QUIET,
    SECOND,
    actions,
    beyond,
    inside,
    kill,
    kill_node,
    lost,
    reference,
    replaceable,
    slots,
    wait_at,
)
from tests.env.kit import assert_same
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Shared batches get other processes here. `test_close` looks at what remains of batches after losses."""


def quiet(envs: ClusterEnv, steps: int = 0) -> list[Any]:
    """Reset, and take some steps; what Gymnasium answers to these and eight more."""
    theirs = reference(slot_kwargs=slots(), mode=envs.autoreset_mode.value)
    theirs.reset(seed=QUIET)
    envs.reset(seed=QUIET)
    for _ in range(steps):
        envs.step(actions(envs))
    return [theirs.step(actions(envs)) for _ in range(9)]


def unharmed(answer: Any, expected: Any, rows: list[int]) -> None:
    """These rows are what Gymnasium answers."""
    for found, right in zip(answer[:4], expected[:4], strict=True):
        assert_same(found[rows], right[rows])


# Environments that raise.


def test_an_environment_that_raises_loses_its_slot(next_step: ClusterEnv) -> None:
    expected = quiet(next_step, 2)
    next_step.set_attr("misbehave", "raise", indices=[1])
    answer = next_step.step(actions(next_step))
    unharmed(answer, expected[2], [0, 2, 3, 4])
    assert answer[3].tolist() == [False, True, False, False, False]
    assert answer[1][1] == 0.0
    assert "planned error" in str(answer[4]["env_error"][1])
    after = next_step.step(actions(next_step))
    unharmed(after, expected[3], [0, 2, 3, 4])
    assert after[0][1, 1] == 0, "the next observation is a reset's"
    assert next_step.step(actions(next_step))[0][1, 1] == 1


def test_an_environment_that_raises_in_recv(next_step: ClusterEnv) -> None:
    next_step.reset(seed=QUIET)
    next_step.set_attr("misbehave", "raise", indices=[3])
    next_step.send([1], slots=[3])
    next_step.send([1], slots=[0])
    _, _, _, truncated, infos = next_step.recv(2)
    assert infos["env_id"].tolist() == [3, 0]
    assert truncated.tolist() == [True, False]
    assert infos["_env_error"].tolist() == [True, False]


def test_an_environment_that_raises_is_raised(strict: ClusterEnv) -> None:
    strict.reset(seed=QUIET)
    strict.step(actions(strict))
    strict.set_attr("misbehave", "raise", indices=[3])
    with pytest.raises(ValueError, match="planned error") as caught:
        strict.step(actions(strict))
    error = caught.value
    assert isinstance(error, EnvError)
    assert (error.slot, error.seed, error.step) == (3, QUIET + 3, 2)
    assert "tests/conformance/envs.py" in error.remote_traceback
    expected = quiet(strict)
    unharmed(strict.step(actions(strict)), expected[0], [0, 1, 2, 3, 4])


# Workers that are killed.


@pytest.mark.fault("F01")
@beyond
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_killed_worker_loses_its_slots_in_step(
    next_step: ClusterEnv, same_step: ClusterEnv, disabled: ClusterEnv, mode: str
) -> None:
    envs = {"NextStep": next_step, "SameStep": same_step, "Disabled": disabled}[mode]
    expected = quiet(envs, 2)
    kill(envs, 1)
    answer = envs.step(actions(envs))
    unharmed(answer, expected[2], FIRST)
    assert lost(answer[4]) == SECOND
    assert answer[3].tolist() == [False, False, False, True, True]
    np.testing.assert_array_equal(answer[1][SECOND], 0.0)
    if mode == "SameStep":
        assert [row[1] for row in answer[4]["final_obs"][SECOND]] == [2, 2], "the last that was seen of them"
        np.testing.assert_array_equal(answer[0][SECOND, 1], 0)
    else:
        np.testing.assert_array_equal(answer[0][SECOND, 1], 2, "the last that was seen of them")
    if mode == "Disabled":
        envs.reset(options={"reset_mask": answer[3]})
    after = envs.step(actions(envs))
    unharmed(after, expected[3], FIRST)
    assert lost(after[4]) == []
    np.testing.assert_array_equal(after[0][SECOND, 1], 0 if mode == "NextStep" else 1)
    np.testing.assert_array_equal(after[0][:, 0], range(NUM_ENVS), "the slots are those they were")


@beyond
def test_a_worker_that_dies_in_a_step(next_step: ClusterEnv) -> None:
    expected = quiet(next_step, 1)
    next_step.set_attr("misbehave", "kill", indices=[1])
    answer = next_step.step(actions(next_step))
    assert lost(answer[4]) == FIRST
    unharmed(answer, expected[1], SECOND)
    unharmed(next_step.step(actions(next_step)), expected[2], SECOND)
    assert next_step.get_attr("misbehave") == (None,) * NUM_ENVS, "the environments are others"


@beyond
def test_a_killed_worker_loses_its_slots_in_recv(next_step: ClusterEnv, tmp_path: pathlib.Path) -> None:
    quiet(next_step, 1)
    gate = tmp_path / "gate"
    next_step.set_attr("misbehave", wait_at(gate), indices=[3])
    next_step.send([1], slots=[3])
    next_step.send([1, 1], slots=[0, 2])
    inside(gate)
    kill(next_step, 1)
    observations, rewards, _, truncated, infos = next_step.recv(3)
    assert infos["env_id"].tolist() == [3, 0, 2]
    assert truncated.tolist() == [True, False, False]
    assert lost(infos) == [0]
    assert rewards[0] == 0.0
    np.testing.assert_array_equal(observations[1:, 1], 2)
    for slot in (4, 3, 0):
        next_step.send([1], slots=[slot])
    observations, *_, truncated, infos = next_step.recv(3)
    assert infos["env_id"].tolist() == [4, 3, 0]
    assert truncated.tolist() == [True, False, False], "slot 4 was lost with its worker, and shows it now"
    assert lost(infos) == [0]
    np.testing.assert_array_equal(observations[1:, 1], [0, 3])


@beyond
def test_a_slot_that_waits_after_a_loss_begins_with_a_reset(next_step: ClusterEnv) -> None:
    # Both slots of a worker are lost under way. The replacement owes neither a step: one slot goes on, and meanwhile
    # nothing may happen to the other.
    one, other = SECOND
    quiet(next_step, 1)
    next_step.set_attr("misbehave", "kill", indices=[one])
    next_step.send([1, 1], slots=SECOND)
    assert lost(next_step.recv(2)[4]) == [0, 1]
    for steps in (0, 1):
        next_step.send([1], slots=[one])
        assert next_step.recv()[0][0, 1] == steps
    next_step.send([1], slots=[other])
    observations, *_, infos = next_step.recv()
    assert infos["env_id"].tolist() == [other]
    assert observations[0, 1] == 0, "the first observation after a loss is a reset's"
    assert next_step.get_attr("steps")[other] == next_step.get_attr("life")[other] == 0


@beyond
def test_a_killed_worker_in_a_call_and_in_a_reset(next_step: ClusterEnv) -> None:
    quiet(next_step, 1)
    kill(next_step, 0)
    with pytest.raises(WorkerLost, match=r"get_attr|call|slot"):
        next_step.get_attr("slot")
    answer = next_step.step(actions(next_step))
    assert lost(answer[4]) == FIRST
    kill(next_step, 1)
    expected = quiet(next_step)
    unharmed(next_step.step(actions(next_step)), expected[0], [0, 1, 2, 3, 4])


@beyond
def test_a_killed_worker_is_raised(strict: ClusterEnv) -> None:
    def step_of_one() -> None:
        strict.send([1], slots=[4])
        strict.recv()

    for step in (lambda: strict.step(actions(strict)), step_of_one):
        strict.reset(seed=QUIET)
        strict.step(actions(strict))
        kill(strict, 1)
        with pytest.raises(WorkerLost) as caught:
            step()
        assert caught.value.worker == 1
        assert list(caught.value.slots) == SECOND
        assert "SIGKILL" in str(caught.value)
    expected = quiet(strict)
    unharmed(strict.step(actions(strict)), expected[0], [0, 1, 2, 3, 4])


# Losses while others come back.


@pytest.fixture
def hurt_meanwhile(next_step: ClusterEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the first replacement is waited for, worker 0 is killed."""
    node = next_step._engine.node
    ready = node.ready
    hurt: list[int] = []

    def lost_worker() -> bool:
        node.look()
        return not node.alive(0)

    def kill_first(workers: Any, limit_s: Any) -> Any:
        if not hurt:
            hurt.append(0)
            kill(next_step, 0)
            wait_until(lost_worker, LIMIT_S)
        return ready(workers, limit_s)

    monkeypatch.setattr(node, "ready", kill_first)


@beyond
@pytest.mark.usefixtures("hurt_meanwhile")
def test_a_worker_that_is_lost_while_another_comes_back(next_step: ClusterEnv) -> None:
    expected = quiet(next_step, 1)
    kill(next_step, 1)
    answer = next_step.step(actions(next_step))
    assert lost(answer[4]) == SECOND
    unharmed(answer, expected[1], FIRST)
    answer = next_step.step(actions(next_step))
    assert lost(answer[4]) == FIRST, "it had gone on after the first loss"
    np.testing.assert_array_equal(answer[0][:, 1], [2, 2, 2, 0, 0])
    answer = next_step.step(actions(next_step))
    assert lost(answer[4]) == []
    np.testing.assert_array_equal(answer[0][:, 1], [0, 0, 0, 1, 1])


@beyond
@pytest.mark.usefixtures("hurt_meanwhile")
def test_a_worker_that_is_lost_while_another_comes_back_in_recv(next_step: ClusterEnv, tmp_path: pathlib.Path) -> None:
    quiet(next_step, 1)
    gate = tmp_path / "gate"
    next_step.set_attr("misbehave", wait_at(gate), indices=[0])
    next_step.send([1], slots=[0])
    inside(gate)
    kill(next_step, 1)
    next_step.send([1], slots=[3])
    assert next_step.recv()[4]["env_id"].tolist() == [3]
    next_step.send([1], slots=[4])
    *_, truncated, infos = next_step.recv(2)
    assert infos["env_id"].tolist() == [0, 4]
    assert lost(infos) == [0, 1]
    assert truncated.tolist() == [True, True]


@beyond
@pytest.mark.usefixtures("hurt_meanwhile")
def test_a_worker_that_is_lost_after_its_part_of_a_reset_is_reset_again(next_step: ClusterEnv) -> None:
    quiet(next_step, 1)
    next_step.set_attr("dies_in_reset", True, indices=SECOND)
    expected = quiet(next_step)
    unharmed(next_step.step(actions(next_step)), expected[0], [0, 1, 2, 3, 4])


# Nodes that are killed.


@pytest.mark.fault("F01")
@replaceable
def test_a_killed_node_loses_its_slots(next_step: ClusterEnv) -> None:
    expected = quiet(next_step, 2)
    kill_node(next_step, 1)
    answer = next_step.step(actions(next_step))
    unharmed(answer, expected[2], FIRST)
    assert lost(answer[4]) == SECOND
    assert answer[3].tolist() == [False, False, False, True, True]
    after = next_step.step(actions(next_step))
    unharmed(after, expected[3], FIRST)
    np.testing.assert_array_equal(after[0][SECOND, 1], 0)
    np.testing.assert_array_equal(after[0][:, 0], range(NUM_ENVS))
    assert all(pid is not None for pid in next_step.worker_pids())


@replaceable
def test_a_killed_node_loses_its_slots_in_recv(next_step: ClusterEnv, tmp_path: pathlib.Path) -> None:
    quiet(next_step, 1)
    gate = tmp_path / "gate"
    next_step.set_attr("misbehave", wait_at(gate), indices=[4])
    next_step.send(actions(next_step))
    inside(gate)
    kill_node(next_step, 1)
    seen: dict[int, bool] = {}
    while len(seen) < NUM_ENVS:
        *_, truncated, infos = next_step.recv()
        told = lost(infos, len(truncated))
        seen |= {slot: row in told for row, slot in enumerate(infos["env_id"].tolist())}
        np.testing.assert_array_equal(np.flatnonzero(truncated), told)
    assert [seen[slot] for slot in (0, 1, 2, 4)] == [False, False, False, True]
    next_step.reset()


@replaceable
def test_a_killed_node_is_raised(strict: ClusterEnv) -> None:
    strict.reset(seed=QUIET)
    kill_node(strict, 0)
    with pytest.raises(WorkerLost) as caught:
        strict.step(actions(strict))
    assert list(caught.value.slots) == FIRST
    expected = quiet(strict)
    unharmed(strict.step(actions(strict)), expected[0], [0, 1, 2, 3, 4])
