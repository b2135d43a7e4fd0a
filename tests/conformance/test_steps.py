"""Lock step: the answers of SyncVectorEnv, value for value, wherever the environments live."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError

from clusterenv import ActionError
from clusterenv.node.host import Host
from tests.conformance.kit import (
    DRESS,
    LIMIT_S,
    NUM_ENVS,
    QUIET,
    SAMPLE,
    abroad,
    actions,
    beyond,
    episodes,
    inside,
    reference,
    slots,
    wait_at,
)
from tests.env.kit import assert_same, trajectory
from tests.faults.interrupts import interrupted_at

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

STEPS, SEED = 80, 7
MODES = {"NextStep": "next_step", "SameStep": "same_step", "Disabled": "disabled"}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def trial(
    request: pytest.FixtureRequest, next_step: ClusterEnv, same_step: ClusterEnv, disabled: ClusterEnv, mode: str
) -> ClusterEnv:
    """The trial environments in the autoreset mode of this test."""
    return {"NextStep": next_step, "SameStep": same_step, "Disabled": disabled}[mode]


def test_the_answers_of_gymnasium(trial: ClusterEnv, mode: str) -> None:
    play = episodes if mode == "Disabled" else trajectory
    expected = play(reference(mode=mode, slot_kwargs=slots()), STEPS, SEED)
    ends = [answer[2] | answer[3] for answer in expected if len(answer) == 5]
    assert np.sum(ends) > 20, "the reference is worth comparing with"
    told = set().union(*(answer[-1] for answer in expected))
    assert {"_deep", "_row", "_none", "_list", "start"} <= told
    assert ("final_obs" in told) == ("final_info" in told) == (mode == "SameStep")
    assert_same(play(trial, STEPS, SEED), expected)


def test_a_second_run_is_the_first_again(next_step: ClusterEnv) -> None:
    first = trajectory(next_step, 20, SEED)
    trajectory(next_step, 7, seed=3)
    assert_same(trajectory(next_step, 20, SEED), first)


def test_resets_by_mask_with_seeds_and_options(trial: ClusterEnv, mode: str) -> None:
    def play(envs: Any) -> list[Any]:
        envs.action_space.seed(1)
        answers = [envs.reset(seed=[0, 1, 4, 7, 9], options={"level": 3, "name": "é"})]
        answers += [envs.step(envs.action_space.sample()) for _ in range(2)]
        mask = np.array([True, False, False, True, False])
        answers += [envs.reset(seed=QUIET, options={"reset_mask": mask, "level": 4})]
        answers += [envs.step(envs.action_space.sample())]
        answers += [envs.reset(seed=[0, 4, None, 1, 0], options={"reset_mask": ~mask & (np.arange(5) != 2)})]
        return [*answers, envs.step(envs.action_space.sample())]

    assert_same(play(trial), play(reference(mode=mode, slot_kwargs=slots())))


def test_spaces_that_fit_into_arrays(fixed: ClusterEnv) -> None:
    expected = trajectory(reference(SAMPLE, observes="all fixed", acts="a tuple"), 30, SEED)
    assert "got" in expected[1][4], "the environments tell which actions they got, with their types"
    assert_same(trajectory(fixed, 30, SEED), expected)


def test_spaces_that_do_not(free: ClusterEnv) -> None:
    expected = trajectory(reference(SAMPLE, observes="all free", acts="all free"), 30, SEED)
    assert_same(trajectory(free, 30, SEED), expected)


@abroad
@pytest.mark.parametrize("host", [1, 2])
def test_interrupted_while_hosts_are_asked(free: ClusterEnv, host: int) -> None:
    """Those that were not asked are asked with the actions of that step, without a wait for what they cannot know."""
    lonely = reference(SAMPLE, observes="all free", acts="all free")
    lonely.reset(seed=SEED)
    free.reset(seed=SEED)
    free.action_space.seed(SEED)
    drawn = free.action_space.sample()
    with interrupted_at(Host, "ask", host):
        free.step(drawn)
    assert_same(free.step_wait(LIMIT_S), lonely.step(drawn))
    drawn = free.action_space.sample()
    assert_same(free.step(drawn), lonely.step(drawn))


@pytest.mark.parametrize(
    ("observes", "acts"), [("one", "bits"), ("many", "box"), ("text", "graph"), ("box", "several")]
)
def test_spaces_by_themselves(make: Make, observes: str, acts: str) -> None:
    expected = trajectory(reference(SAMPLE, observes=observes, acts=acts), 12, SEED)
    assert_same(trajectory(make(SAMPLE, observes=observes, acts=acts), 12, SEED), expected)


def test_an_environment_of_gymnasium_by_its_id(make: Make) -> None:
    expected = trajectory(reference("CartPole-v1"), 60, SEED)
    envs = make("CartPole-v1")
    assert_same(trajectory(envs, 60, SEED), expected)
    assert repr(envs) == "ClusterEnv(CartPole-v1, num_envs=5)"


def test_wrappers_and_arguments_of_slots(dressed: ClusterEnv) -> None:
    expected = trajectory(reference(wrappers=DRESS, slot_kwargs=slots(), render_mode="rgb_array"), 40, SEED)
    assert min(answer[1][np.nonzero(answer[1])].min() for answer in expected[1:]) > 80, "the wrapper adds a lot"
    assert_same(trajectory(dressed, 40, SEED), expected)
    assert dressed.get_attr("length") == (15, 14, 13, 12, 11)


def test_the_two_halves_of_a_step(next_step: ClusterEnv) -> None:
    expected = trajectory(reference(slot_kwargs=slots()), 20, SEED)
    next_step.action_space.seed(SEED)
    next_step.reset_async(seed=SEED)
    answers: list[Any] = [next_step.reset_wait()]
    for _ in range(20):
        next_step.step_async(next_step.action_space.sample())
        with pytest.raises(AlreadyPendingCallError):
            next_step.step_async(actions(next_step))
        answers.append(next_step.step_wait(timeout=20.0))
    assert_same(answers, expected)


@pytest.mark.fault("F08")
@beyond
def test_a_step_that_is_late_comes_with_the_next_wait(next_step: ClusterEnv, tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    next_step.reset(seed=QUIET)
    next_step.set_attr("misbehave", wait_at(gate), indices=[3])
    next_step.step_async(actions(next_step))
    inside(gate)
    with pytest.raises(multiprocessing.TimeoutError, match="step_wait"):
        next_step.step_wait(timeout=0.05)
    gate.touch()
    observations = next_step.step_wait()[0]
    np.testing.assert_array_equal(observations[:, 1], 1, "every slot took one step")


def test_actions_that_do_not_fit_step_nothing(next_step: ClusterEnv) -> None:
    next_step.reset(seed=QUIET)
    before = next_step.get_attr("life")
    for wrong in ([0, 1], [0, 1, 2, 3, 99], np.zeros((5, 2)), "text"):
        with pytest.raises(ActionError):
            next_step.step(wrong)
    assert next_step.get_attr("life") == before
    next_step.step(actions(next_step))
    assert next_step.get_attr("life") == tuple(life + 1 for life in before)


def test_observations_can_be_kept(next_step: ClusterEnv) -> None:
    first, _ = next_step.reset(seed=QUIET)
    kept = first.copy()
    rewards = next_step.step(actions(next_step))[1]
    rewards_kept = rewards.copy()
    next_step.step(actions(next_step))
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(rewards, rewards_kept)


def test_two_batches_at_once(next_step: ClusterEnv, same_step: ClusterEnv) -> None:
    expected = [trajectory(reference(mode=mode, slot_kwargs=slots()), 20, SEED) for mode in ("NextStep", "SameStep")]
    both = (next_step, same_step)
    found: list[list[Any]] = [[], []]
    for envs, answers in zip(both, found, strict=True):
        envs.action_space.seed(SEED)
        answers.append(envs.reset(seed=SEED))
    for _ in range(20):
        for envs in both:
            envs.step_async(envs.action_space.sample())
        for envs, answers in zip(reversed(both), reversed(found), strict=True):
            answers.append(envs.step_wait())
    assert_same(found, expected)
    assert len(expected[0][0][0]) == NUM_ENVS
