"""A block of environments: rows, resets, autoreset in three modes, replacements, calls."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

from clusterenv.cluster.restart import fresh_seed
from clusterenv.transport.arena import Word
from clusterenv.worker.block import EnvBlock
from clusterenv.worker.describe import WRAPPER_CLASSES, class_name
from clusterenv.worker.report import EnvFailed
from tests.worker.kit import MODES, ScriptedEnv, bound, ends_after, logged, observed

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def test_a_step_fills_the_row_of_its_environment() -> None:
    with bound(lambda: ScriptedEnv(ends_after(5)), count=3) as block:
        block.reset()
        block.step([1])
        block.step([1, 2])
        assert block.observation == [[0, 1], [2, 1], [1, 1]]
        assert block.arena.reward.tolist() == [0.0, 2.0, 1.0]


def test_each_environment_gets_its_own_action() -> None:
    with bound(ScriptedEnv, count=3) as block:
        block.reset()
        block.arena.action[0][:] = [2, 0, 1]
        block.step([2, 0])
        assert [env.actions for env in block.made] == [[2], [], [1]]
        assert type(block.made[0].actions[0]) is np.int64, "as SyncVectorEnv hands it over"


def test_an_action_that_is_kept_is_not_overwritten() -> None:
    class Keeps(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (2,))

    with bound(Keeps) as block:
        block.reset()
        for value in (0.25, 0.5):
            block.arena.action[0][:] = value
            block.step()
        assert [action.tolist() for action in block.made[0].actions] == [[0.25, 0.25], [0.5, 0.5]]


def test_nested_actions_arrive_in_their_structure() -> None:
    class Nested(ScriptedEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Dict(a=spaces.Discrete(3), b=spaces.MultiBinary(2))

    with bound(Nested, count=2) as block:
        block.reset()
        block.arena.action[0][:] = [1, 2]
        block.arena.action[1][:] = [[0, 1], [1, 1]]
        block.step([1])
        action = block.made[1].actions[0]
        assert (action["a"], action["b"].tolist()) == (2, [1, 1])


def test_a_reset_gives_each_environment_its_seed_and_the_options() -> None:
    with bound(ScriptedEnv, count=3) as block:
        block.block.reset([2, 0], [7, None], {"hard": True})
        assert [env.seeds for env in block.made] == [[None], [], [7]]
        assert [env.options for env in block.made] == [[{"hard": True}], [], [{"hard": True}]]


def test_a_reset_clears_reward_and_flags() -> None:
    with bound(lambda: ScriptedEnv(ends_after(1)), DISABLED) as block:
        block.reset()
        block.step()
        assert (block.arena.reward.tolist(), block.flags) == ([1.0], [(True, False)])
        block.reset()
        assert (block.arena.reward.tolist(), block.flags) == ([0.0], [(False, False)])
        assert block.observation == [[0, 2]]


# Autoreset.


def test_next_step_shows_the_last_observation_and_resets_with_the_next_step() -> None:
    with bound(lambda: ScriptedEnv(ends_after(2, {"k": 1})), NEXT) as block:
        block.reset()
        block.step()
        ending = block.step()
        assert (block.observation, block.flags) == ([[2, 1]], [(True, False)])
        assert ending.infos == [(0, {"k": 1})]
        resetting = block.step()
        assert (block.observation, block.flags, block.arena.reward.tolist()) == ([[0, 2]], [(False, False)], [0.0])
        assert resetting.infos == []
        assert len(block.made[0].actions) == 2, "the action of the step that resets is not used"
        block.step()
        assert block.observation == [[1, 2]]


def test_same_step_shows_the_first_observation_and_keeps_the_last_in_the_infos() -> None:
    with bound(
        lambda: ScriptedEnv(ends_after(2, {"k": 1}), lambda env: (observed(0, env.resets), {"r": 2})), SAME
    ) as b:
        b.reset()
        b.step()
        report = b.step()
        assert (b.observation, b.flags, b.arena.reward.tolist()) == ([[0, 2]], [(True, False)], [2.0])
        (_, final), (slot, info) = report.infos
        assert (slot, final["final_obs"].tolist(), final["final_info"], info) == (0, [2, 1], {"k": 1}, {"r": 2})
        b.step()
        assert (b.observation, b.flags) == ([[1, 2]], [(False, False)])


def test_same_step_copies_the_last_observation_before_the_reset_reuses_its_buffer() -> None:
    buffer = observed(0, 0)

    def step(env: ScriptedEnv) -> Any:
        buffer[:] = 9
        return buffer, 1.0, True, False, {"buffer": buffer}

    def reset(env: ScriptedEnv) -> Any:
        buffer[:] = 0
        return buffer, {}

    with bound(lambda: ScriptedEnv(step, reset), SAME) as block:
        block.reset()
        final = block.step().infos[0][1]
        assert final["final_obs"].tolist() == [9, 9]
        assert final["final_info"]["buffer"].tolist() == [9, 9]
        assert block.observation == [[0, 0]]


def test_disabled_never_resets_by_itself() -> None:
    with bound(lambda: ScriptedEnv(ends_after(1)), DISABLED) as block:
        block.reset()
        block.step()
        block.step()
        assert block.made[0].resets == 1
        assert (block.observation, block.flags) == ([[2, 1]], [(True, False)])


@pytest.mark.parametrize("mode", [NEXT, SAME])
def test_truncation_ends_an_episode_too(mode: AutoresetMode) -> None:
    with bound(lambda: ScriptedEnv(lambda env: (observed(env.steps, 0), 1.0, False, True, {})), mode) as block:
        block.reset()
        block.step()
        assert block.flags == [(False, True)]
        if mode is NEXT:
            block.step()
        assert block.made[0].resets == 2


@pytest.mark.parametrize("mode", MODES)
def test_environments_of_a_block_live_apart(mode: AutoresetMode) -> None:
    lengths = iter([1, 3])
    with bound(lambda: ScriptedEnv(ends_after(next(lengths))), mode, count=2) as block:
        block.reset()
        block.step()
        assert block.flags == [(True, False), (False, False)]
        if mode is not DISABLED:
            block.step()
            block.step()
            assert block.flags[1] == (True, False)


def test_an_autoreset_does_not_seed_again() -> None:
    with bound(lambda: ScriptedEnv(ends_after(1)), SAME) as block:
        block.reset([5])
        block.step()
        assert block.made[0].seeds == [5, None]


# An environment that raises.


def failing(at: int, length: int = 100) -> ScriptedEnv:
    def step(env: ScriptedEnv) -> Any:
        if len(env.actions) == at:
            raise ValueError(f"at {at}")
        return ends_after(length)(env)

    return ScriptedEnv(step)


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_raises_is_replaced_and_its_slot_truncated(mode: AutoresetMode) -> None:
    with bound(lambda: failing(at=3), mode, count=2) as block:
        block.reset([10, 20])
        for _ in range(2):
            assert not block.step([0])
        report = block.step()
        assert len(block.made) == 3
        assert block.made[0].closes == 1
        assert block.flags == [(False, True), (False, False)]
        assert block.arena.reward.tolist() == [0.0, 1.0]
        failure = report.failures[0]
        assert (failure.slot, failure.doing, failure.recovered) == (0, "step", True)
        assert isinstance(failure.error, ValueError)
        assert "at 3" in failure.traceback
        assert {key for slot, info in report.infos if slot == 0 for key in info} >= {"worker_lost", "env_error"}
        assert block.observation[1] == [1, 1], "the other environment was stepped"


def test_next_step_resets_a_replacement_with_a_fresh_seed_in_the_next_step() -> None:
    with bound(lambda: failing(at=2), NEXT) as block:
        block.reset([10])
        block.step()
        block.step()
        assert block.observation == [[1, 1]], "what was seen last stays"
        block.step()
        assert (block.observation, block.flags) == ([[0, 1]], [(False, False)])
        assert block.made[1].seeds == [fresh_seed(10, 0, 1)]


def test_same_step_resets_a_replacement_at_once() -> None:
    with bound(lambda: failing(at=2), SAME) as block:
        block.reset([10])
        block.step()
        report = block.step()
        assert (block.observation, block.flags) == ([[0, 1]], [(False, True)])
        assert block.made[1].seeds == [fresh_seed(10, 0, 1)]
        merged = {key: value for _, info in report.infos for key, value in info.items()}
        assert (merged["final_obs"].tolist(), merged["final_info"]) == ([1, 1], {})
        assert merged["worker_lost"] is True
        assert merged["env_error"] == "ValueError: at 2"


def starts_badly(env: ScriptedEnv) -> Any:
    if env.resets == 2:
        raise OSError("no simulator")
    return observed(0, env.resets), {"r": 1}


def test_the_last_step_of_an_episode_stands_if_the_reset_after_it_raises() -> None:
    with bound(lambda: ScriptedEnv(ends_after(2), starts_badly), SAME) as block:
        block.reset([10])
        block.step()
        report = block.step()
        assert (block.flags, block.arena.reward.tolist()) == ([(True, False)], [2.0])
        assert block.observation == [[0, 1]], "of the fresh environment"
        assert block.made[1].seeds == [fresh_seed(10, 0, 1)]
        (failure,) = report.failures
        assert (failure.doing, failure.recovered) == ("reset", True)
        merged = {key: value for _, info in report.infos for key, value in info.items()}
        assert merged["final_obs"].tolist() == [2, 1]
        assert merged["env_error"] == "OSError: no simulator"
        assert "worker_lost" not in merged, "nothing was"


def test_for_who_keeps_last_observations_it_stands_too() -> None:
    kept: list[list[float]] = []
    with bound(lambda: ScriptedEnv(ends_after(2), starts_badly), NEXT) as block:
        block.block.keep_final = lambda row, observation, info: kept.append(observation.tolist())
        block.reset([10])
        block.step()
        block.step()
        assert (kept, block.flags, block.observation) == ([[2, 1]], [(True, False)], [[0, 1]])


@pytest.mark.parametrize(("bad", "stands"), [(1, True), (2, True), (3, False)])
def test_it_stands_as_often_as_resets_are_tried(bad: int, stands: bool) -> None:
    resets: list[int] = []

    def starts(env: ScriptedEnv) -> Any:
        resets.append(len(resets))
        if 1 <= resets[-1] <= bad:
            raise OSError("no simulator")
        return observed(0, env.resets), {}

    with bound(lambda: ScriptedEnv(ends_after(2), starts), SAME) as block:
        block.reset([10])
        block.step()
        report = block.step()
        assert (block.flags == [(True, False)]) == stands
        assert (block.arena.reward.tolist() == [2.0]) == stands
        assert [failure.doing for failure in report.failures][:bad] == ["reset"] * min(bad, 2) + ["step"] * (bad - 2)


def test_every_replacement_gets_another_seed() -> None:
    with bound(lambda: failing(at=1), SAME) as block:
        block.reset([10])
        for _ in range(3):
            block.step()
        seeds = [env.seeds[0] for env in block.made[1:]]
        assert seeds == [fresh_seed(10, 0, restarts) for restarts in (1, 2, 3)]


@pytest.mark.parametrize("mode", MODES)
def test_a_replacement_that_is_reset_by_name_without_a_seed_gets_its_fresh_one(mode: AutoresetMode) -> None:
    with bound(lambda: failing(at=1), mode) as block:
        block.reset([10])
        block.step()
        block.reset()
        fresh = fresh_seed(10, 0, 1)
        assert block.made[1].seeds == ([fresh, None] if mode is SAME else [fresh])
        block.reset()
        assert block.made[1].seeds[-1] is None, "it is no longer fresh"


def test_a_reset_without_a_seed_that_raises_is_tried_again_with_fresh_seeds() -> None:
    def reset(env: ScriptedEnv) -> Any:
        if (len(block.made), env.resets) in ((1, 2), (2, 1)):
            raise ValueError("not now")
        return observed(0, 0), {}

    with bound(lambda: ScriptedEnv(on_reset=reset)) as block:
        block.reset([10])
        block.reset()
        assert [env.seeds for env in block.made] == [[10, None], [fresh_seed(10, 0, 1)], [fresh_seed(10, 0, 2)]]


def test_an_environment_that_raises_after_its_worker_was_replaced_gets_a_fresh_seed() -> None:
    with bound(lambda: failing(at=1), NEXT) as block:
        block.block.replace_lost([77])
        for _ in range(3):
            block.step()
        assert [env.seeds for env in block.made] == [[77], [fresh_seed(77, 0, 1)]]


def test_without_a_seed_a_replacement_gets_none() -> None:
    with bound(lambda: failing(at=1), SAME) as block:
        block.reset()
        block.step()
        assert block.made[1].seeds == [None]


@pytest.mark.parametrize("mode", MODES)
def test_without_rebuild_the_environment_stays_and_the_failure_says_so(mode: AutoresetMode) -> None:
    with bound(lambda: failing(at=1), mode, rebuild=False) as block:
        block.reset()
        report = block.step()
        assert len(block.made) == 1
        assert [failure.recovered for failure in report.failures] == [False]


def test_a_replacement_that_cannot_be_built_is_a_second_failure() -> None:
    made = iter([failing(at=1)])

    def build() -> ScriptedEnv:
        return next(made)

    with bound(build) as block:
        block.reset()
        report = block.step()
        assert [(failure.doing, failure.recovered) for failure in report.failures] == [
            ("build", False),
            ("step", False),
        ]


def test_a_replacement_whose_reset_raises_is_told() -> None:
    def reset(env: ScriptedEnv) -> Any:
        raise ValueError("no reset")

    made = iter([failing(at=1), ScriptedEnv(on_reset=reset)])
    with bound(lambda: next(made), SAME) as block:
        block.reset()
        report = block.step()
        assert [(failure.doing, failure.recovered) for failure in report.failures] == [("step", True), ("reset", False)]


@pytest.mark.parametrize(("good_after", "outcome"), [(1, [True]), (2, [True, True]), (9, [True, True, False])])
def test_a_reset_that_raises_is_tried_in_fresh_environments(good_after: int, outcome: list[bool]) -> None:
    tries = iter(range(100))

    def reset(env: ScriptedEnv) -> Any:
        if next(tries) < good_after:
            raise ValueError("not yet")
        return observed(5, 5), {"k": 1}

    with bound(lambda: ScriptedEnv(on_reset=reset)) as block:
        report = block.reset([3])
        assert [failure.recovered for failure in report.failures] == outcome
        assert {failure.doing for failure in report.failures} == {"reset"}
        worked = outcome[-1]
        assert report.infos == ([(0, {"k": 1})] if worked else [])
        assert block.observation == [[5, 5] if worked else [0, 0]]
        assert [env.seeds for env in block.made] == [[3]] * len(block.made)


def test_without_rebuild_a_reset_is_tried_once() -> None:
    def reset(env: ScriptedEnv) -> Any:
        raise ValueError("never")

    with bound(lambda: ScriptedEnv(on_reset=reset), rebuild=False) as block:
        assert [failure.recovered for failure in block.reset().failures] == [False]
        assert len(block.made) == 1


def test_a_factory_that_raises_says_for_which_slot() -> None:
    def broken() -> ScriptedEnv:
        raise OSError("no such ROM")

    with pytest.raises(EnvFailed) as caught:
        EnvBlock([ScriptedEnv, broken], range(4, 6), NEXT, rebuild=True)
    failure = caught.value.failure
    assert (failure.slot, failure.doing, str(failure.error)) == (5, "build", "no such ROM")


@pytest.mark.parametrize("mode", MODES)
def test_the_replacement_of_a_lost_block_starts_with_a_reset(mode: AutoresetMode) -> None:
    with bound(ScriptedEnv, mode, count=2) as block:
        block.block.replace_lost([3, None])
        if mode is NEXT:
            block.step()
            assert [env.seeds for env in block.made] == [[3], [None]]
            assert block.observation == [[0, 1], [0, 1]]
        else:
            # The head resets these by name: in the same step, or when the user says so.
            block.reset([8, 9])
            assert [env.seeds for env in block.made] == [[8], [9]]
        block.step()
        assert block.observation == [[1, 1], [1, 1]]


# Where it is, for the head.


def test_the_slot_word_tells_which_environment_is_stepped() -> None:
    seen: list[int] = []

    def step(env: ScriptedEnv) -> Any:
        seen.append(block.word(Word.SLOT))
        return observed(1, 1), 0.0, False, False, {}

    def reset(env: ScriptedEnv) -> Any:
        seen.append(block.word(Word.SLOT))
        return observed(0, 0), {}

    with bound(lambda: ScriptedEnv(step, reset), count=3) as block:
        block.reset()
        block.step([2, 0])
        assert seen == [0, 1, 2, 2, 0]
        assert block.word(Word.SLOT) == -1, "between two requests it is nowhere"


# Calls.


def test_call_reads_attributes_and_calls_methods() -> None:
    with bound(ScriptedEnv, count=3) as block:
        block.reset()
        block.step([1])
        assert block.block.call([0, 1], "steps", (), {}) == [0, 1]
        assert block.block.call([2], "has_wrapper_attr", (), {"name": "nothing"}) == [False]


def test_wrappers_are_told_by_name() -> None:
    env = TimeLimit(ScriptedEnv(), 5)
    block = EnvBlock([lambda: env, lambda: env.env], range(2), NEXT, rebuild=False)
    wrapped, bare = block.call([0, 1], WRAPPER_CLASSES, (), {})
    assert {class_name(TimeLimit), class_name(gymnasium.Wrapper)} <= set(wrapped)
    assert class_name(ScriptedEnv) not in wrapped, "it is no wrapper"
    assert bare == []


def test_set_attr_gives_each_environment_its_value() -> None:
    with bound(ScriptedEnv, count=3) as block:
        block.block.set_attr([2, 0], "difficulty", [5, 6])
        assert [getattr(env, "difficulty", None) for env in block.made] == [6, None, 5]


@pytest.mark.parametrize("name", ["no_such_method", "step"])
def test_a_call_that_raises_names_the_slot_and_the_method(name: str) -> None:
    def step(env: ScriptedEnv) -> Any:
        raise KeyError("x")

    with bound(lambda: ScriptedEnv(step), count=2) as block, pytest.raises(EnvFailed) as caught:
        block.block.call([1], name, (0,), {})
    assert (caught.value.failure.slot, caught.value.failure.doing) == (1, name)


def test_close_closes_every_environment_also_when_one_raises() -> None:
    def close(env: ScriptedEnv) -> None:
        raise RuntimeError("stuck")

    closes = iter([None, close, None])
    with (
        bound(lambda: ScriptedEnv(on_close=next(closes)), count=3) as block,
        logged("clusterenv.worker.block") as lines,
    ):
        block.block.close()
        assert [env.closes for env in block.made] == [1, 1, 1]
    assert len(lines) == 1
    assert "raised in close()" in lines[0]
    assert "RuntimeError: stuck" in lines[0]


def test_spaces_that_differ_within_a_block_are_described() -> None:
    kinds = iter([None, spaces.Box(0, 1, (3,)), None])
    made = [ScriptedEnv(observation_space=next(kinds)) for _ in range(3)]
    block = EnvBlock([made[0].__class__, lambda: made[1], made[0].__class__], range(4, 7), NEXT, rebuild=True)
    description = block.describe()
    assert [(slot, space.shape) for slot, space, _ in description.others] == [(5, (3,))]
    assert [space.shape for space in description.observation_spaces()] == [(2,), (3,), (2,)]


def test_observations_that_fit_no_array_go_into_the_report_as_copies() -> None:
    kept = ["a"]

    def step(env: ScriptedEnv) -> Any:
        kept[0] = "abc"
        return kept, 0.0, False, False, {}

    space = spaces.Sequence(spaces.Text(3))
    with bound(lambda: ScriptedEnv(step, lambda env: (kept, {}), observation_space=space), count=2) as block:
        assert block.reset().observations == [(0, ["a"]), (1, ["a"])]
        report = block.step([1])
        kept[0] = "overwritten"
        assert report.observations == [(1, ["abc"])]
        assert block.step([0]).observations == [(0, ["abc"])]
