"""The action distributions: their arithmetic against torch, and what all of them promise."""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from clusterenv.policy.distributions import (
    Bernoulli,
    Categorical,
    Deterministic,
    DiagGaussian,
    Distribution,
    EpsilonGreedy,
    MultiCategorical,
    TanhGaussian,
    distribution_for,
)
from clusterenv.policy.streams import Streams

if TYPE_CHECKING:
    from clusterenv.policy.protocol import Array

theirs: Any = torch.distributions  # half typed
few = settings(max_examples=40, deadline=None)

KINDS: list[Distribution] = [
    Categorical(4, start=2),
    MultiCategorical((3, 2, 4)),
    MultiCategorical((3, 3, 3, 3), start=(0, 1, 0, 2), shape=(2, 2)),
    Bernoulli(6, shape=(2, 3)),
    DiagGaussian(3, low=-1, high=(1, 2, 3)),
    DiagGaussian(6, shape=(3, 2)),
    TanhGaussian(low=(-2, 0, 5), high=(2, 1, 5.5)),
    Deterministic(low=(-1, -2), high=(1, 4), noise_std=0.2),
    EpsilonGreedy(5, epsilon=0.3),
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: repr(kind)[:40])


def params_of(kind: Distribution, *lead: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 1.5, (*lead, kind.size)).astype(np.float32)


def noise_of(kind: Distribution, *lead: int, seed: int = 0) -> Array:
    rows = math.prod(lead)
    return Streams(seed, range(1)).draw(rows, kind.draws, kind.noise).reshape(*lead, kind.draws)


def double(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array, np.float64))


def close(got: Array, expected: Any, rtol: float = 2e-6, atol: float = 3e-6) -> None:
    np.testing.assert_allclose(got, np.asarray(expected), rtol=rtol, atol=atol)


# What every kind promises.


@every_kind
def test_actions_have_the_shape_and_dtype_that_were_announced(kind: Distribution) -> None:
    assert isinstance(kind, Distribution)
    for actions in (kind.sample(params_of(kind, 5), noise_of(kind, 5)), kind.mode(params_of(kind, 5))):
        assert actions.shape == (5, *kind.action.shape)
        assert actions.dtype == kind.action.dtype


@every_kind
def test_a_row_depends_on_no_other_row(kind: Distribution) -> None:
    params, noise = params_of(kind, 7), noise_of(kind, 7)
    actions = kind.sample(params, noise)
    log_prob = kind.log_prob(params, actions)
    for row in range(7):
        alone = kind.sample(params[row : row + 1], noise[row : row + 1])
        log_prob_alone = kind.log_prob(params[row : row + 1], alone)
        np.testing.assert_array_equal(alone[0], actions[row])
        np.testing.assert_array_equal(log_prob_alone[0], log_prob[row])


@every_kind
def test_the_noise_decides_the_action(kind: Distribution) -> None:
    params, noise = np.zeros((40, kind.size), np.float32), noise_of(kind, 40)
    np.testing.assert_array_equal(kind.sample(params, noise), kind.sample(params.copy(), noise.copy()))
    assert len(np.unique(kind.sample(params, noise).reshape(40, -1), axis=0)) > 1


@every_kind
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_log_prob_of_a_batch_is_that_of_each_of_its_steps(kind: Distribution, order: Any) -> None:
    params, noise = params_of(kind, 6, 8), noise_of(kind, 6, 8)
    actions = np.stack([kind.sample(params[step], noise[step]) for step in range(6)])
    alone = np.stack([kind.log_prob(params[step], actions[step]) for step in range(6)])
    again = kind.log_prob(np.asarray(params, order=order), actions)
    assert again.shape == (6, 8)
    assert again.dtype == np.float32
    np.testing.assert_array_equal(again, alone)
    np.testing.assert_array_equal(kind.sample(params, noise), actions)


def test_that_holds_for_many_choices_too() -> None:
    # Here the order of a sum shows in its last bits.
    kind = Categorical(300)
    params = params_of(kind, 6, 8)
    actions = kind.sample(params, noise_of(kind, 6, 8))
    stored = kind.log_prob(params, actions)
    for again in (params, np.asfortranarray(params)):
        np.testing.assert_array_equal(kind.log_prob(again, actions), stored)
    close(stored, theirs.Categorical(logits=double(params)).log_prob(torch.from_numpy(actions)))


@every_kind
def test_a_divergence_is_zero_for_equal_parameters_only(kind: Distribution) -> None:
    old = params_of(kind, 3, 200)
    new = old[:, ::-1]
    apart = kind.divergence(old, new)
    assert apart.shape == (3, 200)
    assert apart.dtype == np.float64
    assert (apart >= 0).all()
    assert 0 < apart.mean() < math.inf
    np.testing.assert_array_equal(kind.divergence(old, old.copy()), np.zeros((3, 200)))


@every_kind
def test_the_entropy_is_the_mean_of_the_surprise(kind: Distribution) -> None:
    # Near the middle, where Deterministic clips next to nothing.
    params = np.tile(0.2 * params_of(kind, 1), (40_000, 1)) + (0.5 if isinstance(kind, Deterministic) else 0)
    log_prob = kind.log_prob(params, kind.sample(params, noise_of(kind, 40_000)))
    entropy = kind.entropy(params[:1])
    assert entropy.shape == (1,)
    assert entropy.dtype == np.float32
    assert -log_prob.mean(dtype=np.float64) == pytest.approx(entropy[0], abs=float(5 * log_prob.std() / 200))


@every_kind
def test_a_distribution_is_a_value(kind: Distribution) -> None:
    kind.sample(params_of(kind, 2), noise_of(kind, 2))
    again = pickle.loads(pickle.dumps(kind))
    assert again == kind
    assert hash(again) == hash(kind)
    np.testing.assert_array_equal(
        again.sample(params_of(kind, 2), noise_of(kind, 2)), kind.sample(params_of(kind, 2), noise_of(kind, 2))
    )


@every_kind
def test_the_arguments_are_left_alone(kind: Distribution) -> None:
    params, noise = params_of(kind, 4), noise_of(kind, 4)
    params[0, 0] = -1e9
    kept, kept_noise = params.copy(), noise.copy()
    actions = kind.sample(params, noise)
    kept_actions = actions.copy()
    kind.log_prob(params, actions), kind.entropy(params), kind.divergence(params, params), kind.to_env(actions)
    np.testing.assert_array_equal(params, kept)
    np.testing.assert_array_equal(noise, kept_noise)
    np.testing.assert_array_equal(actions, kept_actions)


# Categorical.

extreme = st.sampled_from([1e4, -1e4, -math.inf, -1e8, -3e8])


@st.composite
def logits(draw: Any, columns: int = 5, rows: int = 4) -> Array:
    """Rows of logits, each with at least one that is not masked."""
    number = st.floats(-20, 20, width=32) | extreme
    array = draw(hnp.arrays(np.float32, (rows, columns), elements=number))
    array[np.arange(rows), draw(st.integers(0, columns - 1))] = draw(st.sampled_from([0.0, 1e4, -1e4]))
    return np.asarray(array)


def masked(params: Array) -> torch.Tensor:
    return double(np.where(params <= -1e8, -np.inf, params))


@few
@given(logits(), logits(), st.integers(0, 2**32 - 1))
def test_categorical_against_torch(old: Array, new: Array, seed: int) -> None:
    kind = Categorical(5)
    reference = theirs.Categorical(logits=masked(old))
    actions = kind.sample(old, noise_of(kind, 4, seed=seed))
    log_prob = kind.log_prob(old, actions)
    assert (old[np.arange(4), actions] > -1e8).all()
    close(log_prob, reference.log_prob(torch.from_numpy(actions)))
    close(kind.entropy(old), reference.entropy())
    everything = kind.log_prob(np.repeat(old[:, None], 5, 1), np.tile(np.arange(5), (4, 1)))
    assert np.isfinite(everything).all()
    close(np.exp(everything).sum(-1), np.ones(4))
    # Torch calls a KL infinite as soon as a probability underflows.
    expected = theirs.kl_divergence(reference, theirs.Categorical(logits=masked(new))).numpy()
    finite = np.isfinite(expected)
    got = kind.divergence(old, new)
    assert np.isfinite(got).all()
    close(got[finite], expected[finite], atol=1e-9)


@few
@given(st.integers(0, 4), st.sampled_from([-math.inf, -1e8, -1e30]), st.sampled_from([-9.9e7, 0.0, 3e4]))
def test_all_but_one_masked(allowed: int, mask: float, logit: float) -> None:
    kind = Categorical(5)
    params = np.full((3, 5), mask, np.float32)
    params[:, allowed] = logit
    for uniform in (0.0, 0.5, 1 - 2.0**-24, 1.0):
        actions = kind.sample(params, np.full((3, 1), uniform, np.float32))
        log_prob = kind.log_prob(params, actions)
        np.testing.assert_array_equal(actions, allowed)
        np.testing.assert_array_equal(log_prob, 0)
    np.testing.assert_array_equal(kind.mode(params), allowed)
    np.testing.assert_array_equal(kind.entropy(params), 0)
    # The same mask, written in another way.
    np.testing.assert_array_equal(kind.divergence(params, np.where(params == mask, np.float32(-2e9), params)), 0)


def test_a_mask_counts_however_low_the_others_are() -> None:
    params = np.array([[-1e8, -1e8 + 8]], np.float32)
    np.testing.assert_array_equal(Categorical(2).sample(params, np.zeros((1, 1))), 1)


@pytest.mark.parametrize("mask", [-math.inf, -1e9])
def test_a_row_with_everything_masked_counts_as_one_with_nothing_masked(mask: float) -> None:
    kind = MultiCategorical((2, 4))
    params, noise = np.full((400, 6), mask, np.float32), noise_of(kind, 400)
    actions = kind.sample(params, noise)
    log_prob = kind.log_prob(params, actions)
    assert actions[:, 0].max() == 1, "the filling beside the shorter place is no choice"
    assert actions[:, 1].max() == 3
    close(log_prob, np.full(400, -math.log(8)))


@pytest.mark.parametrize("columns", [2, 3, 18, 1000])
def test_no_uniform_number_points_outside(columns: int) -> None:
    kind, generator = Categorical(columns), np.random.default_rng(columns)
    params = generator.normal(0, 3, (500, columns)).astype(np.float32)
    params[:, -1] = -np.inf
    for uniform in (0.0, 1 - 2.0**-24, 1.0):
        actions = kind.sample(params, np.full((500, 1), uniform, np.float32))
        assert actions.min() >= 0
        assert actions.max() < columns - 1


def chi_square(counts: Array, probabilities: Array) -> float:
    allowed = probabilities > 0
    assert not counts[~allowed].any()
    expected = probabilities[allowed] * counts.sum()
    return float(((counts[allowed] - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("kind", [Categorical(5), EpsilonGreedy(5, 0.4)], ids=["categorical", "epsilon"])
def test_frequencies_are_the_probabilities(kind: Distribution) -> None:
    params = np.array([0.3, -1.0, -np.inf, 1.0, 0.0], np.float32)
    rows = 50_000
    actions = kind.sample(np.tile(params, (rows, 1)), noise_of(kind, rows))
    probabilities = np.exp(kind.log_prob(np.tile(params, (5, 1)), np.arange(5))).astype(np.float64)
    # With 3 degrees of freedom, 21 is passed once in ten thousand times.
    assert chi_square(np.bincount(actions, minlength=5), probabilities) < 21


# MultiCategorical and Bernoulli.


@few
@given(logits(9), logits(9), st.integers(0, 2**32 - 1))
def test_multi_categorical_is_the_sum_of_its_places(old: Array, new: Array, seed: int) -> None:
    # Every place must have something that is not masked.
    old[:, [0, 3, 5]] = new[:, [0, 3, 5]] = 0
    kind, places = MultiCategorical((3, 2, 4)), [(Categorical(3), 0), (Categorical(2), 3), (Categorical(4), 5)]
    noise = noise_of(kind, 4, seed=seed)
    actions = kind.sample(old, noise)
    log_prob = kind.log_prob(old, actions)

    def parts(array: Array) -> list[tuple[Categorical, Array]]:
        return [(place, array[:, first : first + place.n]) for place, first in places]

    for index, (place, part) in enumerate(parts(old)):
        np.testing.assert_array_equal(actions[:, index], place.sample(part, noise[:, index : index + 1]))
        np.testing.assert_array_equal(kind.mode(old)[:, index], place.mode(part))
    close(log_prob, sum(place.log_prob(part, actions[:, i]) for i, (place, part) in enumerate(parts(old))))
    close(kind.entropy(old), sum(place.entropy(part) for place, part in parts(old)))
    pairs = zip(parts(old), parts(new), strict=True)
    close(kind.divergence(old, new), sum(place.divergence(part, other) for (place, part), (_, other) in pairs))


@few
@given(logits(3), logits(3), st.integers(0, 2**32 - 1))
def test_bernoulli_against_torch(old: Array, new: Array, seed: int) -> None:
    kind = Bernoulli(3)
    # Torch has no infinite logits; exp(-1e4) is 0 too.
    reference, other = (
        theirs.Independent(theirs.Bernoulli(logits=double(np.maximum(each, -1e4))), 1) for each in (old, new)
    )
    actions = kind.sample(old, noise_of(kind, 4, seed=seed))
    log_prob = kind.log_prob(old, actions)
    assert not actions[old <= -1e4].any()
    assert actions[old >= 1e4].all()
    close(log_prob, reference.log_prob(double(actions)))
    close(kind.entropy(old), reference.entropy())
    # Beyond 1e3 torch loses digits; what we leave out is compared by the next test.
    small = (np.abs(old) < 1e3).all(-1) & (np.abs(new) < 1e3).all(-1)
    close(kind.divergence(old, new)[small], theirs.kl_divergence(reference, other).numpy()[small])


def test_a_masked_switch_stays_off_without_a_trace() -> None:
    kind, params = Bernoulli(2), np.array([[-np.inf, 0.5]], np.float32)
    assert kind.sample(params, np.zeros((1, 2), np.float32)).tolist() == [[0, 1]]
    close(kind.entropy(params), Bernoulli(1).entropy(params[:, 1:]))
    np.testing.assert_array_equal(kind.divergence(params, np.array([[-1e9, 0.5]], np.float32)), 0)
    assert np.isfinite(kind.log_prob(params, np.array([[1, 1]])))


def test_switches_are_as_often_on_as_their_probability_says() -> None:
    params = np.tile(np.array([-2.0, 0.0, 1.5], np.float32), (50_000, 1))
    actions = Bernoulli(3).sample(params, noise_of(Bernoulli(3), 50_000))
    close(actions.mean(0), 1 / (1 + np.exp(-params[0])), atol=0.01)


# Gaussians.


@st.composite
def gaussians(draw: Any, lowest: float = -20) -> Array:
    mean = draw(hnp.arrays(np.float32, (3, 2), elements=st.floats(-5, 5, width=32)))
    log_std = draw(hnp.arrays(np.float32, (3, 2), elements=st.floats(lowest, 2, width=32)))
    return np.concatenate([mean, log_std], -1)


def normal(params: Array) -> Any:
    return theirs.Normal(double(params[:, :2]), double(params[:, 2:]).exp())


@few
@given(gaussians(), gaussians(), st.integers(0, 2**32 - 1))
def test_diag_gaussian_against_torch(old: Array, new: Array, seed: int) -> None:
    kind = DiagGaussian(2)
    actions = kind.sample(old, noise_of(kind, 3, seed=seed))
    log_prob = kind.log_prob(old, actions)
    close(log_prob, normal(old).log_prob(double(actions)).sum(-1))
    close(kind.entropy(old), normal(old).entropy().sum(-1))
    expected = theirs.kl_divergence(normal(old), normal(new)).sum(-1)
    close(kind.divergence(old, new), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(kind.mode(old), old[:, :2])


def squashed(params: Array, low: Array, high: Array) -> Any:
    scale = theirs.AffineTransform(double((low + high) / 2), double((high - low) / 2))
    return theirs.TransformedDistribution(normal(params), [theirs.TanhTransform(cache_size=1), scale])


LOW, HIGH = np.array([-2.0, 0.0]), np.array([2.0, 0.5])


@few
@given(gaussians(-5), gaussians(), hnp.arrays(np.float32, (3, 2), elements=st.floats(1 / 1024, 1023 / 1024, width=32)))
def test_tanh_gaussian_against_torch(old: Array, new: Array, share: Array) -> None:
    kind = TanhGaussian(LOW, HIGH)
    actions = (LOW + share * (HIGH - LOW)).astype(np.float32)
    close(kind.log_prob(old, actions), squashed(old, LOW, HIGH).log_prob(double(actions)).sum(-1), rtol=1e-5)
    expected = theirs.kl_divergence(normal(old), normal(new)).sum(-1)
    close(kind.divergence(old, new), expected, rtol=1e-9, atol=1e-9)
    close(kind.mode(old), LOW + (HIGH - LOW) * (np.tanh(old[:, :2]) + 1) / 2)


@pytest.mark.parametrize(("low", "high"), [(-1, 1), (0, 4), (-3, 0), (100, 101), (-0.1, 1e6)])
def test_tanh_gaussian_on_its_bounds(low: float, high: float) -> None:
    kind = TanhGaussian(low, high)
    params = np.array([[30.0, 0.0], [-30.0, 0.0]], np.float32)
    actions = kind.sample(params, np.zeros((2, 1), np.float32))
    log_prob = kind.log_prob(params, actions)
    np.testing.assert_array_equal(actions, np.array([[high], [low]], np.float32))
    assert np.isfinite(log_prob).all()
    values = kind.unsquash(actions)
    assert values[0] > 4 > -4 > values[1]
    # It is the density of the value just inside, in float64 by torch.
    inner = torch.from_numpy(values)
    slope = theirs.TanhTransform().log_abs_det_jacobian(inner, None) + math.log((high - low) / 2)
    reference = theirs.Normal(double(params[:, :1]), 1.0).log_prob(inner) - slope
    close(log_prob, reference.sum(-1))
    # And that value is one that float32 (or, at 0, tanh) takes for the bound or for its neighbour.
    step = np.abs(np.nextafter(actions, np.float32(low + high) / 2) - actions) + (high - low) * 2.0**-53
    assert (np.abs(kind.squash(values) - actions) <= step).all()


@few
@given(st.floats(-6, 6, width=32), st.sampled_from([(-1.0, 1.0), (0.0, 4.0), (-5.0, 2.0)]))
def test_what_was_squashed_is_recovered(value: float, bounds: tuple[float, float]) -> None:
    kind = TanhGaussian(*bounds)
    got = kind.unsquash(kind.squash(np.array([value])))
    # A step of float32 in the action is a step of 1 / slope in x.
    close(got, [value], atol=1.5e-7 * math.cosh(value) ** 2 + 1e-9)


def test_the_entropy_of_a_tanh_gaussian_is_right_for_wide_and_narrow_ones() -> None:
    log_std = np.array([-10.0, -2.0, 0.0, 1.0, 2.0])
    params = np.stack([np.full(5, 0.7), log_std], -1).astype(np.float32)
    x = 0.7 + np.exp(log_std)[:, None] * (points := np.linspace(-9, 9, 20_001))
    weights = np.exp(-(points**2) / 2)
    slope = math.log(3) + 2 * (math.log(2) - x - np.logaddexp(0, -2 * x))
    expected = log_std + 0.5 + 0.5 * math.log(2 * math.pi) + (slope * weights).sum(-1) / weights.sum()
    close(TanhGaussian(-3, 3).entropy(params), expected, atol=1e-4)


# Deterministic and EpsilonGreedy.


def test_deterministic_clips_its_noise_and_measures_in_ranges() -> None:
    kind = Deterministic(low=(0, -4), high=(2, 4), noise_std=0.5)
    params = np.array([[1.0, 3.0]], np.float32)
    np.testing.assert_array_equal(kind.sample(params, np.array([[-1.0, 2.0]], np.float32)), [[0.5, 4.0]])
    close(kind.log_prob(params, np.array([[0.5, 3.0]], np.float32)), [-0.5 - math.log(0.5 * 2) - math.log(2 * math.pi)])
    corners = np.array([[0.0, -4.0]]), np.array([[2.0, 4.0]])
    np.testing.assert_array_equal(kind.divergence(*corners), [1.0])
    np.testing.assert_array_equal(kind.divergence(corners[1], np.array([[9.0, 9.0]])), [0.0])
    close(kind.divergence(np.array([[0.0, 0.0]]), np.array([[1.0, 4.0]])), [0.5])


def test_deterministic_without_noise_is_its_mode() -> None:
    kind = Deterministic(low=-1, high=1, shape=(2,))
    params = np.array([[0.25, -3.0]], np.float32)
    actions = kind.sample(params, np.ones((1, 2), np.float32))
    log_prob = kind.log_prob(params, actions)
    np.testing.assert_array_equal(actions, [[0.25, -1.0]])
    np.testing.assert_array_equal(kind.mode(params), actions)
    np.testing.assert_array_equal(log_prob, 0)
    np.testing.assert_array_equal(kind.entropy(params), 0)


@pytest.mark.parametrize("epsilon", [0.0, 0.25, 1.0])
def test_epsilon_greedy_is_the_mix_it_says(epsilon: float) -> None:
    kind = EpsilonGreedy(4, epsilon)
    values = np.array([0.5, 2.0, -np.inf, 2.0], np.float32)
    log_prob = kind.log_prob(np.tile(values, (4, 1)), np.arange(4))
    assert np.isfinite(log_prob).all()
    close(np.exp(log_prob), [epsilon / 3, epsilon / 3 + 1 - epsilon, 0, epsilon / 3])
    assert kind.mode(values) == 1, "the first of two equals"
    probabilities = np.exp(log_prob)
    allowed = probabilities[probabilities > 0]
    close(kind.entropy(values[None]), [-(allowed * np.log(allowed)).sum()])


def test_epsilon_greedy_with_everything_masked_explores_everything() -> None:
    kind = EpsilonGreedy(3, 1.0)
    actions = kind.sample(np.full((100, 3), -np.inf, np.float32), noise_of(kind, 100))
    log_prob = kind.log_prob(np.full((100, 3), -np.inf, np.float32), actions)
    assert set(actions.tolist()) == {0, 1, 2}
    close(log_prob, np.full(100, -math.log(3)))


def test_the_divergence_of_greedy_policies_is_the_share_of_other_choices() -> None:
    old, new = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]]), np.array([[5.0, 0], [0, 1], [1, 0], [0, 9]])
    assert EpsilonGreedy(2, 0.1).divergence(old, new).tolist() == [0, 1, 1, 0]


# What the environment gets.

SPACES = [
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([3, 2], start=[1, -1]),
    spaces.MultiDiscrete(np.array([[3, 2], [2, 4]]), dtype=np.int32),
    spaces.MultiBinary((2, 3)),
    spaces.MultiBinary(4),
    spaces.Box(-0.1, 0.1, (2, 3)),
    spaces.Box(np.array([-0.1, 0.3]), np.array([0.7, 0.4]), dtype=np.float64),
    spaces.Box(0, np.inf, (2,)),
    spaces.Box(-1, 1, ()),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_what_reaches_the_environment_is_in_its_space(space: spaces.Space[Any]) -> None:
    kind = distribution_for(space)
    params = params_of(kind, 50)
    for actions in (kind.sample(params, noise_of(kind, 50)), kind.mode(params)):
        sent = kind.to_env(actions)
        assert sent.dtype == space.dtype
        assert sent.shape == (50, *(space.shape or ()))
        for action in sent:
            assert np.asarray(action) in space


def test_a_box_of_float64_is_not_left_by_rounding() -> None:
    box = spaces.Box(np.array([0.1, -0.7]), np.array([0.3, 0.9]), dtype=np.float64)
    kind = TanhGaussian(box.low, box.high, dtype=box.dtype)
    ends = np.array([[40.0, 40.0, 0, 0], [-40.0, -40.0, 0, 0]], np.float32)
    assert all(action in box for action in kind.to_env(kind.mode(ends)))


def test_learners_count_from_zero() -> None:
    kind = distribution_for(spaces.Discrete(3, start=5))
    actions = kind.sample(np.zeros((50, 3), np.float32), noise_of(kind, 50))
    assert set(actions.tolist()) == {0, 1, 2}
    assert set(kind.to_env(actions).tolist()) == {5, 6, 7}


@pytest.mark.parametrize(
    ("space", "sampled"),
    [
        (spaces.MultiBinary(3), np.int8),
        (spaces.MultiBinary((2, 2)), np.int8),
        (spaces.Discrete(3, start=1), np.int64),
        (spaces.Discrete(3, dtype=np.int32), np.int64),
        (spaces.MultiDiscrete([2, 3], dtype=np.int32), np.int64),
        (spaces.Box(-1, 1, (2,), np.float32), np.float32),
        (spaces.Box(-1, 1, (2,), np.float64), np.float32),
    ],
    ids=str,
)
def test_learners_get_one_dtype_per_kind_and_environments_that_of_their_space(space: Any, sampled: Any) -> None:
    kind = distribution_for(space)
    assert kind.action.dtype == sampled
    sent = kind.to_env(kind.mode(np.zeros((2, kind.size), np.float32)))
    assert sent.dtype == batch_space(space, 2).dtype == space.dtype
