"""First come, first served: every slot once and in its order, with the answers that it gives by itself."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from clusterenv import ConfigError
from tests.conformance.kit import NUM_ENVS, QUIET, SAMPLE, TRIAL, actions, beyond, inside, slots, wait_at
from tests.env.kit import assert_same

if TYPE_CHECKING:
    import pathlib

    from clusterenv import ClusterEnv

SEED = 21


def alone(env_id: str, mode: str, row: int, **kwargs: Any) -> SyncVectorEnv:
    """The environment of one slot, by Gymnasium, after its reset."""
    envs = SyncVectorEnv([lambda: gymnasium.make(env_id, **kwargs)], autoreset_mode=mode)
    envs.reset(seed=SEED + row)
    return envs


def row_of(answer: Any, row: int) -> tuple[Any, ...]:
    """One row of what `recv` or `step` returned, with infos cut to those of the row."""
    observations, *rest, infos = answer
    return (*_cut([observations, *rest], row), _info_of(infos, row))


def _cut(value: Any, row: int) -> Any:
    if isinstance(value, dict):
        return {name: _cut(part, row) for name, part in value.items()}
    if isinstance(value, list):
        return [_cut(part, row) for part in value]
    return value[row]


def _info_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """What the row was told: the values whose mask says so."""
    told = {name for name in infos if f"_{name}" in infos and infos[f"_{name}"][row]}
    return {name: _info_of(infos[name], row) if isinstance(infos[name], dict) else infos[name][row] for name in told}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_every_slot_goes_its_own_way(next_step: ClusterEnv, same_step: ClusterEnv, mode: str) -> None:
    envs = next_step if mode == "NextStep" else same_step
    lonely = [alone(TRIAL, mode, slot, **mine) for slot, mine in enumerate(slots())]
    rng = np.random.default_rng(5)
    envs.reset(seed=SEED)
    sent: dict[int, int] = {}
    taken = np.zeros(NUM_ENVS, int)
    while taken.min() <= 20:
        idle = [slot for slot in range(NUM_ENVS) if slot not in sent]
        chosen = rng.permutation(idle)[: rng.integers(0, len(idle) + 1)] if sent else rng.permutation(idle)
        if len(chosen):
            drawn = rng.integers(0, 5, len(chosen))
            envs.send(drawn, slots=chosen)
            sent |= dict(zip(chosen.tolist(), drawn.tolist(), strict=True))
        answer = envs.recv(int(rng.integers(1, len(sent) + 1)), max_slots=None)
        for row, slot in enumerate(answer[4]["env_id"].tolist()):
            expected = lonely[slot].step([sent.pop(slot)])
            assert_same(row_of(answer, row), row_of(expected, 0), f"slot {slot} step {taken[slot]}")
            taken[slot] += 1
    while sent:
        for slot in envs.recv(len(sent))[4]["env_id"].tolist():
            del sent[slot]


def test_what_was_sent_first_comes_first(next_step: ClusterEnv) -> None:
    next_step.reset(seed=QUIET)
    for count in range(1, 9):
        order = np.random.default_rng(count).permutation(NUM_ENVS).tolist()
        for slot in order:
            next_step.send([1], slots=[slot])
        observations, *_, infos = next_step.recv(NUM_ENVS)
        assert infos["env_id"].tolist() == order
        np.testing.assert_array_equal(observations[:, 0], order, "the rows are those of the slots")
        np.testing.assert_array_equal(observations[:, 1], count)


def test_no_more_than_wanted(next_step: ClusterEnv) -> None:
    next_step.reset(seed=QUIET)
    next_step.send(actions(next_step))
    taken = [next_step.recv(1, max_slots=1) for _ in range(NUM_ENVS)]
    assert [len(answer[1]) for answer in taken] == [1] * NUM_ENVS
    assert sorted(int(answer[4]["env_id"][0]) for answer in taken) == list(range(NUM_ENVS))
    for observations, *_, infos in taken:
        np.testing.assert_array_equal(observations[:, 0], infos["env_id"])


@pytest.mark.fault("F08")
@beyond
def test_who_is_slow_keeps_nobody_waiting(next_step: ClusterEnv, tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    next_step.reset(seed=QUIET)
    next_step.set_attr("misbehave", wait_at(gate), indices=[3])
    next_step.send(actions(next_step))
    inside(gate)
    assert sorted(next_step.recv(3)[4]["env_id"].tolist()) == [0, 1, 2], "those of the other worker"
    for count in range(2, 5):
        next_step.send([1, 1], slots=[0, 2])
        observations, *_, infos = next_step.recv(2)
        assert sorted(infos["env_id"].tolist()) == [0, 2]
        np.testing.assert_array_equal(observations[:, 1], count)
    with pytest.raises(multiprocessing.TimeoutError, match="recv"):
        next_step.recv(timeout=0.05)
    with pytest.raises(ConfigError, match="slot 3 has an unfinished send"):
        next_step.send([1, 1], slots=[0, 3])
    gate.touch()
    observations, *_, infos = next_step.recv(2)
    assert sorted(infos["env_id"].tolist()) == [3, 4]
    np.testing.assert_array_equal(observations[:, 1], 1)


def test_spaces_that_fit_into_no_array(free: ClusterEnv) -> None:
    lonely = [alone(SAMPLE, "NextStep", slot, observes="all free", acts="all free") for slot in range(NUM_ENVS)]
    free.reset(seed=SEED)
    free.single_action_space.seed(SEED)
    for _ in range(8):
        drawn = [free.single_action_space.sample() for _ in range(NUM_ENVS)]
        for part in ([4, 1], [0, 2, 3]):
            free.send(batched(free, [drawn[slot] for slot in part]), slots=part)
        answer = free.recv(NUM_ENVS)
        for row, slot in enumerate(answer[4]["env_id"].tolist()):
            expected = lonely[slot].step(batched(free, [drawn[slot]]))
            assert_same(row_of(answer, row), row_of(expected, 0), f"slot {slot}")


def batched(envs: ClusterEnv, items: list[Any]) -> Any:
    """Actions of some slots, as Gymnasium batches them."""
    space = envs.single_action_space
    empty: Any = create_empty_array(space, len(items))
    return concatenate(space, items, empty)


def test_a_step_of_all_after_a_step_of_some(next_step: ClusterEnv) -> None:
    next_step.reset(seed=QUIET)
    next_step.send([1, 2], slots=[1, 4])
    next_step.recv(2)
    observations = next_step.step(actions(next_step))[0]
    np.testing.assert_array_equal(observations[:, 1], [1, 2, 1, 1, 2])
