"""Distributions that differ between slots: epsilon-greedy with one epsilon for each."""

from __future__ import annotations

import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from clusterenv.errors import ConfigError
from clusterenv.policy.base import at_slots, check_slots
from clusterenv.policy.distributions import Categorical, EpsilonGreedy

EPSILONS = (0.4, 0.1, 0.0)
LADDER = EpsilonGreedy(4, EPSILONS, start=2)


def rows(*leading: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(*leading, 4)).astype(np.float32)


@given(steps=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_slot_acts_as_if_its_epsilon_were_the_only_one(steps: int, seed: int) -> None:
    params, noise = rows(steps, 3, seed=seed), np.random.default_rng(seed).random((steps, 3, 1), np.float32)
    actions = LADDER.sample(params, noise)
    logp = LADDER.log_prob(params, actions)
    for slot, epsilon in enumerate(EPSILONS):
        alone = EpsilonGreedy(4, epsilon, start=2)
        theirs = alone.sample(params[:, slot], noise[:, slot])
        their_logp = alone.log_prob(params[:, slot], theirs)
        assert np.array_equal(actions[:, slot], theirs)
        assert np.array_equal(logp[:, slot], their_logp)
        assert np.array_equal(LADDER.entropy(params)[:, slot], alone.entropy(params[:, slot]))
        assert np.array_equal(LADDER.mode(params)[:, slot], alone.mode(params[:, slot]))
        assert np.array_equal(LADDER.to_env(actions)[:, slot], alone.to_env(theirs))


def test_some_slots_alone_and_in_any_order() -> None:
    assert LADDER.at(range(1, 3)).epsilon == (0.1, 0.0)
    assert LADDER.at(np.array([2, 0, 0])).epsilon == (0.0, 0.4, 0.4)
    assert LADDER.at([1]).start == 2
    assert (LADDER.slots, LADDER.at([1]).slots) == (3, 1)


def test_what_is_the_same_everywhere_is_the_same_at_every_slot() -> None:
    for same in (EpsilonGreedy(4, 0.1), Categorical(3)):
        assert same.slots is None
        assert same.at([5, 7]) is same
        assert at_slots(same, [5, 7]) is same
        check_slots(same, 11)


def test_somebodys_own_distribution_needs_no_word_about_slots() -> None:
    own: Any = object()
    assert at_slots(own, [0]) is own
    check_slots(own, 3)


def test_greedy_choices_do_not_depend_on_epsilon() -> None:
    old, new = rows(7), rows(7, seed=1)
    assert np.array_equal(LADDER.divergence(old, new), EpsilonGreedy(4, 0.5).divergence(old, new))


@pytest.mark.parametrize("epsilon", [[0.4, 0.1], (0.4, 0.1), np.array([0.4, 0.1])], ids=lambda it: type(it).__name__)
def test_epsilons_may_come_as_any_sequence(epsilon: Any) -> None:
    made = EpsilonGreedy(2, epsilon)
    assert made == EpsilonGreedy(2, (0.4, 0.1))
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))


def test_one_epsilon_may_be_a_number_of_numpy() -> None:
    for half in (np.float32(0.5), np.array(0.5)):
        assert EpsilonGreedy(2, half).epsilon == 0.5  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(4,), (2, 4), (3, 2, 4), (4, 4)])
def test_another_number_of_rows_is_refused(shape: tuple[int, ...]) -> None:
    for call in (LADDER.entropy, lambda params: LADDER.sample(params, np.zeros((*params.shape[:-1], 1)))):
        with pytest.raises(ConfigError, match=r"there are 3 epsilons, one for each slot\. .*at\(slots\)"):
            call(np.zeros(shape, np.float32))


@pytest.mark.parametrize("slots", [[3], [-1], [], [0, 99]], ids=str)
def test_a_slot_that_has_no_epsilon_is_refused(slots: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be at least one of 0 to 2: there are 3 epsilons"):
        LADDER.at(slots)


@pytest.mark.parametrize("num_envs", [1, 2, 4])
def test_another_number_of_environments_is_refused(num_envs: int) -> None:
    check_slots(LADDER, 3)
    with pytest.raises(ConfigError, match=rf"each of 3 slot\(s\), but there are {num_envs} environments\. Give it"):
        check_slots(LADDER, num_envs)


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        ((0.1, 1.5), r"\(slot 1\) must lie in \[0, 1\]"),
        ((0.1, float("nan")), r"\(slot 1\) must lie in \[0, 1\]"),
        ((0.1, "much"), r"must lie in \[0, 1\]"),
        ((), r"epsilon=\(\) is empty"),
        ([[0.1]], r"must lie in \[0, 1\]"),
        ("0.1x", r"must lie in \[0, 1\]"),
    ],
    ids=str,
)
def test_what_is_no_share_is_refused(epsilon: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EpsilonGreedy(2, epsilon)
