"""A policy that plays in a block: what is recorded, and when weights, episodes and fragments begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clusterenv.errors import PolicyError
from tests.env.policies import CHOICES, Echo, Linear, Memory
from tests.worker.kit import MODES, ScriptedEnv, ends_after, observed
from tests.worker.stage import stage

if TYPE_CHECKING:
    from gymnasium.vector import AutoresetMode


def test_every_step_is_recorded() -> None:
    with stage(Echo(), ends_after(3), steps=5) as playing:
        fragment, columns = playing.play()
        assert (fragment.buffer, fragment.steps, fragment.failures) == (0, 5, [])
        # An observation is (steps, resets): after an end, the first of the next episode.
        assert columns.obs[0][:, 0].tolist() == [[0, 1], [1, 1], [2, 1], [0, 2], [1, 2], [2, 2]]
        assert columns.reward[:, 0].tolist() == [1, 2, 3, 1, 2]
        assert columns.terminated[:, 1].tolist() == [False, False, True, False, False]
        assert not columns.truncated.any()
        assert columns.first[:, 0].tolist() == [True, False, False, True, False, False]
        assert columns.logp.tolist() == [[0.0, 0.0]] * 5, "all the probability is on one action"
        assert columns.value is None
        assert playing.fragments.progress.tolist() == [5]
        assert fragment.env_s > 0.0
        assert fragment.policy_s > 0.0


def test_ends_of_episodes_are_kept_beside_the_rows() -> None:
    with stage(Echo(), ends_after(3), steps=5) as playing:
        _, columns = playing.play()
        assert columns.final[0][2].tolist() == [[3, 1], [3, 1]]
        assert columns.episode_return[2].tolist() == [6.0, 6.0]
        assert columns.episode_length[2].tolist() == [3, 3]


def test_episodes_are_counted_across_fragments() -> None:
    with stage(Echo(), ends_after(5), steps=2) as playing:
        playing.play(0)
        playing.play(1)
        _, columns = playing.play(0)
        assert columns.terminated[:, 0].tolist() == [True, False]
        assert columns.episode_length[0].tolist() == [5, 5]
        assert columns.episode_return[0].tolist() == [15.0, 15.0]
        assert columns.first[:, 0].tolist() == [False, True, False]


def test_a_fragment_begins_where_the_last_one_ended() -> None:
    with stage(Linear(), ends_after(3), steps=3) as playing:
        for number in range(4):
            _, columns = playing.play(number % 2)
            last = [array[-1].copy() for array in columns.obs], columns.first[-1].copy()
            _, columns = playing.play((number + 1) % 2)
            np.testing.assert_array_equal(columns.obs[0][0], last[0][0])
            np.testing.assert_array_equal(columns.first[0], last[1])


def test_the_environments_get_the_recorded_actions() -> None:
    with stage(Linear()) as playing:
        _, columns = playing.play()
        assert [env.actions for env in playing.bound.made] == columns.action.T.tolist()


def test_two_short_fragments_draw_the_numbers_of_one_long_one() -> None:
    with stage(Linear(), steps=6) as playing:
        long = playing.play()[1].action.tolist()
    with stage(Linear(), steps=3) as playing:
        short = playing.play()[1].action.tolist() + playing.play()[1].action.tolist()
    assert short == long
    assert len({action for row in long for action in row}) > 3, "it explores"


def test_acting_by_the_mode() -> None:
    with stage(Linear(), deterministic=True) as playing:
        _, columns = playing.play()
        np.testing.assert_array_equal(columns.action, columns.params.argmax(-1))


def test_values_and_parameters_are_those_of_the_policy() -> None:
    policy = Linear()
    with stage(policy) as playing:
        _, columns = playing.play()
        weights = playing.spec.unflatten(playing.weights.take(playing.spec.floats)[2])
        for t in range(4):
            params, value, _ = policy.forward(weights, columns.obs[0][t], ())
            np.testing.assert_array_equal(columns.params[t], params)
            assert columns.value is not None
            np.testing.assert_array_equal(columns.value[t], value)
        np.testing.assert_array_equal(columns.logp, policy.distribution.log_prob(columns.params, columns.action))


# Recurrent policies.


def test_the_state_starts_each_episode_from_zero() -> None:
    with stage(Memory(), ends_after(3), steps=5) as playing:
        _, columns = playing.play(0)
        assert columns.action[:, 0].tolist() == [1, 2, 3, 1, 2]
        assert columns.state[0].tolist() == [[0.0], [0.0]]
        _, columns = playing.play(1)
        assert columns.state[0].tolist() == [[2.0], [2.0]], "the state before the first step"
        assert columns.action[:, 0].tolist() == [3, 1, 2, 3, 1]


def test_the_state_before_every_step() -> None:
    with stage(Memory(), ends_after(3), steps=5, every_state=True) as playing:
        for buffer, expected in ((0, [0.0, 1.0, 2.0, 0.0, 1.0]), (1, [2.0, 0.0, 1.0, 2.0, 0.0])):
            _, columns = playing.play(buffer)
            assert columns.states is not None
            assert columns.states[0][:, :, 0].T.tolist() == [expected, expected]
            np.testing.assert_array_equal(columns.states[0][0], columns.state[0])


def test_a_policy_without_a_state_has_none_before_any_step() -> None:
    with stage(Echo(), every_state=True) as playing:
        assert playing.play()[1].states == []


def test_one_slot_may_end_while_the_other_goes_on() -> None:
    def step(env: ScriptedEnv) -> Any:
        # The environment that was built first has short episodes.
        return observed(env.steps, 0), 1.0, env.steps >= (2 if env is playing.bound.made[0] else 9), False, {}

    with stage(Memory(), step, steps=5) as playing:
        _, columns = playing.play()
        assert columns.action.T.tolist() == [[1, 2, 1, 2, 1], [1, 2, 3, 4, 5]]


def test_a_policy_may_return_state_that_cannot_be_written() -> None:
    class Frozen(Memory):
        def forward(self, weights: Any, obs: Any, state: Any) -> Any:
            params, value, after = super().forward(weights, obs, state)
            after[0].flags.writeable = False
            return params, value, after

    with stage(Frozen(), ends_after(3), steps=5) as playing:
        playing.play()
        playing.steps()
        _, columns = playing.play()
        assert columns.state[0].tolist() == [[0.0], [0.0]]


# New weights.


@pytest.mark.fault("F34")
@pytest.mark.parametrize(("switch", "versions"), [(True, [0, 0, 1, 1]), (False, [0, 0, 0, 0])])
def test_weights_are_taken_between_steps_only_if_that_is_wanted(switch: bool, versions: list[int]) -> None:
    policy = Echo()

    def step(env: ScriptedEnv) -> Any:
        if env.steps == 2 and env is playing.bound.made[1]:
            policy.number = 1
            playing.publish()
        return observed(env.steps, 0), 0.0, False, False, {}

    with stage(policy, step) as playing:
        _, columns = playing.play(0, switch=switch)
        assert columns.version[:, 0].tolist() == columns.action[:, 0].tolist() == versions
        _, columns = playing.play(1, switch=switch)
        assert columns.version[:, 0].tolist() == columns.action[:, 0].tolist() == [1, 1, 1, 1]


@pytest.mark.fault("F19")
def test_only_the_newest_version_is_taken() -> None:
    policy = Echo()
    with stage(policy) as playing:
        for policy.number in range(1, 6):
            playing.publish()
        assert playing.play()[1].version[:, 0].tolist() == [5] * 4


# Fragments that do not come to their end.


def test_stop_in_the_middle() -> None:
    def step(env: ScriptedEnv) -> Any:
        if env.steps == 2:
            playing.fragments.stop[0] = 1
        return observed(env.steps, 0), 0.0, False, False, {}

    with stage(Echo(), step) as playing:
        assert playing.play()[0].steps == 2
        assert playing.play()[0].steps == 0, "until it is told otherwise"
        playing.fragments.stop[0] = 0
        fragment, columns = playing.play()
        assert fragment.steps == 4
        assert columns.obs[0][:, 0, 0].tolist() == [2, 3, 4, 5, 6], "nothing was stepped in between"


def test_afresh() -> None:
    with stage(Memory(), ends_after(9)) as playing:
        playing.play(0)
        _, columns = playing.play(1, afresh=True)
        assert columns.first[0].all()
        assert columns.obs[0][0].tolist() == [[0, 2], [0, 2]]
        assert columns.action[:, 0].tolist() == [1, 2, 3, 4], "its memory is gone too"
        playing.play(0)
        _, columns = playing.play(1)
        assert columns.episode_length[0].tolist() == [9, 9], "counted from there"


def raises_once(env: ScriptedEnv) -> Any:
    """An environment raises in the third step of its first episode."""
    if env.steps == 3 and env.resets == 1:
        raise ValueError("planned")
    return observed(env.steps, env.resets), 1.0, env.steps >= 5, False, {}


def test_an_environment_that_raises_is_cut_and_begun_afresh() -> None:
    with stage(Memory(), raises_once, steps=7, count=1) as playing:
        fragment, columns = playing.play()
        # Its replacement was built by the same factory and raises as well.
        assert [failure.recovered for failure in fragment.failures] == [True, True]
        assert columns.truncated[:, 0].tolist() == [False, False, True, False, False, True, False]
        assert columns.final[0][2, 0].tolist() == [2, 1], "the last that was seen of it"
        assert columns.episode_length[[2, 5], 0].tolist() == [0, 0], "an episode that was cut has no return"
        assert columns.action[:, 0].tolist() == [1, 2, 3, 1, 2, 3, 1]


def test_an_environment_that_cannot_be_replaced_ends_the_fragment() -> None:
    with stage(Echo(), raises_once, rebuild=False) as playing:
        fragment, _ = playing.play()
        assert fragment.steps == 3
        assert [failure.recovered for failure in fragment.failures] == [False, False]


# What the policy does wrong.


class Broken(Linear):
    """Gives what a test puts in, from the third call on."""

    calls = 0

    def __init__(self, params: float = 0.0, value: float = 0.0) -> None:
        super().__init__()
        self.bad = params, value

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        params, value, state = super().forward(weights, obs, state)
        self.calls += 1
        if self.calls > 2 and len(obs) == 2:
            params[1, 0], value[1] = self.bad
        return params, value, state


@pytest.mark.fault("F58")
@pytest.mark.parametrize(
    ("bad", "what"), [((np.nan, 0.0), "params"), ((np.inf, 0.0), "logp"), ((0.0, np.nan), "value")]
)
def test_what_is_not_a_number_is_told_with_its_place(bad: tuple[float, float], what: str) -> None:
    told = f"Broken gave NaN as {what} in slot 1, step 2 of 4, with version 0"
    with stage(Broken(*bad)) as playing, np.errstate(invalid="ignore"), pytest.raises(PolicyError, match=told):
        playing.play()


def test_choices_that_are_masked_are_no_mistake() -> None:
    with stage(Broken(-np.inf)) as playing:
        assert playing.play()[0].steps == 4


def test_the_policy_is_blamed_and_not_the_environment_that_chokes_on_its_actions() -> None:
    def step(env: ScriptedEnv) -> Any:
        raise ValueError("cannot make sense of the action")

    with stage(Broken(np.nan), step, rebuild=False) as playing:
        made: Any = playing.station._actor
        made._runtime._policy.calls = 2
        with pytest.raises(PolicyError, match="Broken gave NaN"):
            playing.play()


@pytest.mark.parametrize("mode", MODES)
def test_the_block_is_as_before_even_if_the_policy_raises(mode: AutoresetMode) -> None:
    class Raises(Linear):
        def forward(self, weights: Any, obs: Any, state: Any) -> Any:
            if len(obs) == 2:
                raise ZeroDivisionError
            return super().forward(weights, obs, state)

    with stage(Raises(), mode=mode) as playing:
        with pytest.raises(ZeroDivisionError):
            playing.play()
        block = playing.bound.block
        assert (block.autoreset_mode, block.keep_final) == (mode, None)


@pytest.mark.parametrize("mode", MODES)
def test_after_an_error_at_the_end_of_an_episode_the_next_step_of_others_is_a_step(mode: AutoresetMode) -> None:
    with stage(Broken(np.nan), ends_after(4), mode=mode) as playing:
        with pytest.raises(PolicyError):
            playing.play()
        assert playing.bound.flags == [(False, False)] * 2
        playing.steps()
        assert playing.bound.observation == [[1, 2], [1, 2]]


@pytest.mark.parametrize("mode", MODES)
def test_after_the_end_of_an_episode_the_next_step_of_others_is_a_step(mode: AutoresetMode) -> None:
    with stage(Echo(), ends_after(4), mode=mode) as playing:
        assert playing.play()[1].terminated[-1].all()
        assert playing.bound.flags == [(False, False)] * 2
        playing.steps()
        assert playing.bound.observation == [[1, 2], [1, 2]]


def test_one_environment_and_one_step() -> None:
    with stage(Linear(), ends_after(1), steps=1, count=1) as playing:
        for number in range(3):
            _, columns = playing.play(number % 2)
            assert columns.terminated.all()
            assert columns.first.all()
            assert columns.params.shape == (1, 1, CHOICES)
            assert columns.episode_length.tolist() == [[1]]
