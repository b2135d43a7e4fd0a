"""The head's estimate: the right number, from bounded memory, whoever else there is and in whatever order it came."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from clusterenv.errors import ConfigError, ConfigTypeError
from clusterenv.policy.distributions import Categorical, DiagGaussian, EpsilonGreedy
from clusterenv.sync.estimate import Estimator, _effective, _spread
from clusterenv.sync.versions import Version
from tests.sync.kit import Array

ACTIONS = 3
RuntimeParams = Callable[[Sequence[Array], tuple[Array, ...]], Array]


def linear(seed: int) -> RuntimeParams:
    """A policy whose logits for a row depend on that row alone, to the bit: no matrix product over the batch."""
    weights = np.random.default_rng(seed).normal(0, 0.5, (4, ACTIONS))

    def params(leaves: Sequence[Array], state: tuple[Array, ...]) -> Array:
        logits: Array = (leaves[0][:, :, None] * weights).sum(axis=1)
        for part in state:
            logits = logits + part
        return logits.astype(np.float32)

    return params


OLD, NEW, OTHER = linear(0), linear(1), linear(2)
Rows = tuple[list[Array], tuple[Array, ...], Array, Array, Array]


def rows(seed: int, count: int, policy: RuntimeParams = OLD, state: bool = False) -> Rows:
    """What a worker sends after it acted with a policy."""
    rng = np.random.default_rng(seed)
    leaves: list[Array] = [rng.normal(0, 1, (count, 4)).astype(np.float32)]
    carried: tuple[Array, ...] = (rng.normal(0, 1, (count, ACTIONS)).astype(np.float32),) if state else ()
    params = policy(leaves, carried)
    distribution = Categorical(ACTIONS)
    actions = distribution.sample(params, rng.random((count, 1), dtype=np.float32))
    return leaves, carried, params, actions, distribution.log_prob(params, actions)


def estimator(workers: int = 1, **more: object) -> Estimator:
    return Estimator(workers, Categorical(ACTIONS), **more)  # type: ignore[arg-type]


def kl_by_hand(old: Array, new: Array) -> float:
    total = 0.0
    for left, right in zip(old.astype(np.float64), new.astype(np.float64), strict=True):
        p, q = np.exp(left) / np.exp(left).sum(), np.exp(right) / np.exp(right).sum()
        total += float((p * np.log(p / q)).sum())
    return total / len(old)


def ess_by_hand(old_logp: Array, new_logp: Array) -> float:
    ratios = [float(np.exp(new - old)) for new, old in zip(new_logp, old_logp, strict=True)]
    return sum(ratios) ** 2 / sum(ratio**2 for ratio in ratios) / len(ratios)


def test_the_numbers_are_the_textbook_ones() -> None:
    data = rows(1, 50)
    subject = estimator()
    assert subject.observe(0, *data)
    measured = subject.measure(NEW)
    new = NEW(data[0], ())
    assert measured.divergence[0] == pytest.approx(kl_by_hand(data[2], new), rel=1e-5)
    assert measured.ess[0] == pytest.approx(ess_by_hand(data[4], Categorical(3).log_prob(new, data[3])), rel=1e-4)
    assert measured.rows.tolist() == [50]


def test_the_same_policy_is_no_distance_away() -> None:
    subject = estimator()
    subject.observe(0, *rows(1, 64))
    measured = subject.measure(OLD)
    assert measured.divergence.tolist() == [0.0]
    assert measured.ess == pytest.approx([1.0])


def test_log_probabilities_alone_give_nearly_the_same_number() -> None:
    data = rows(1, 4000)
    full, short = estimator(per_worker=4000), estimator(per_worker=4000, divergence="logp")
    for subject in (full, short):
        subject.observe(0, *data)
    exact, sampled = full.measure(NEW).divergence[0], short.measure(NEW).divergence[0]
    assert sampled == pytest.approx(exact, rel=0.15)
    assert sampled != exact
    assert short.measure(OLD).divergence[0] == pytest.approx(0.0, abs=1e-9)


def test_64_rows_are_within_a_factor_of_two() -> None:
    data = rows(1, 4000)
    few, all_rows = estimator(), estimator(per_worker=4000)
    for subject in (few, all_rows):
        subject.observe(0, *data)
    assert 0.5 < few.measure(NEW).divergence[0] / all_rows.measure(NEW).divergence[0] < 2.0


def test_workers_without_data_are_0_and_nan_and_cost_no_call() -> None:
    def never(leaves: Sequence[Array], state: tuple[Array, ...]) -> Array:
        raise AssertionError("there is nothing to evaluate")

    subject = estimator(3)
    for measured in (subject.measure(never), subject.measure(never)):
        assert measured.divergence.tolist() == [0.0, 0.0, 0.0]
        assert np.isnan(measured.ess).all()
    subject.rebase(never)
    subject.observe(1, *rows(1, 5))
    measured = subject.measure(NEW)
    assert (measured.divergence > 0).tolist() == [False, True, False]
    assert np.isnan(measured.ess).tolist() == [True, False, True]


def test_one_call_for_all_workers_within_the_budget() -> None:
    calls = []

    def counting(leaves: Sequence[Array], state: tuple[Array, ...]) -> Array:
        calls.append(len(leaves[0]))
        return NEW(leaves, state)

    subject = estimator(8, per_worker=64, budget=100)
    for worker in range(8):
        subject.observe(worker, *rows(worker, 300))
    measured = subject.measure(counting)
    assert calls == [96]
    assert measured.rows.tolist() == [12] * 8


def test_memory_does_not_grow_with_what_is_sent() -> None:
    subject = estimator(2, per_worker=16)
    for size in (1, 100, 10_000, 3):
        subject.observe(0, *rows(size, size))
    assert subject._kept is not None
    assert [len(column) for column in subject._kept.columns()] == [32] * 5
    assert subject.measure(NEW).rows.tolist() == [3, 0]


def test_rows_are_copied() -> None:
    data = rows(1, 20)
    subject = estimator()
    subject.observe(0, *data)
    before = subject.measure(NEW).divergence[0]
    for column in (*data[0], *data[2:]):
        column[:] = 0
    assert subject.measure(NEW).divergence[0] == before


@given(st.permutations(range(4)), st.integers(0, 3))
@settings(max_examples=20)
def test_neither_the_order_nor_the_others_change_a_worker(order: list[int], alone: int) -> None:
    subject = estimator(4, per_worker=10)
    for worker in order:
        subject.observe(worker, *rows(worker, 25))
    single = estimator(1, per_worker=10)
    single.observe(0, *rows(alone, 25))
    together, apart = subject.measure(NEW), single.measure(NEW)
    assert together.divergence[alone] == apart.divergence[0]
    assert together.ess[alone] == apart.ess[0]


def test_the_last_rows_count() -> None:
    subject, fresh = estimator(), estimator()
    subject.observe(0, *rows(1, 64))
    for each in (subject, fresh):
        each.observe(0, *rows(2, 10))
    assert subject.measure(NEW).divergence[0] == fresh.measure(NEW).divergence[0]


def test_doubling_the_environments_does_not_change_the_number() -> None:
    leaves, _, params, actions, logp = rows(1, 30)
    single, double = estimator(), estimator()
    single.observe(0, leaves, (), params, actions, logp)
    double.observe(
        0, [np.repeat(leaves[0], 2, 0)], (), *(np.repeat(column, 2, 0) for column in (params, actions, logp))
    )
    left, right = single.measure(NEW), double.measure(NEW)
    assert right.divergence == pytest.approx(left.divergence)
    assert right.ess == pytest.approx(left.ess)
    assert right.rows.tolist() == [60]


def test_recurrent_state_travels_with_its_row() -> None:
    data = rows(1, 200, state=True)
    subject = estimator(2, per_worker=7)
    subject.observe(1, *data)
    chosen = _spread(200, 7)
    new = NEW([data[0][0][chosen]], (data[1][0][chosen],))
    assert subject.measure(NEW).divergence[1] == pytest.approx(kl_by_hand(data[2][chosen], new), rel=1e-5)


def test_several_leaves_and_vector_actions() -> None:
    rng = np.random.default_rng(0)
    distribution = DiagGaussian(2)
    leaves: list[Array] = [rng.normal(0, 1, (9, 2)).astype(np.float32), rng.integers(0, 5, 9)]

    def shifted(by: float) -> RuntimeParams:
        return lambda leaves, state: np.concatenate(
            [leaves[0] + leaves[1][:, None] + by, np.zeros_like(leaves[0])], axis=1
        ).astype(np.float32)

    params = shifted(0.0)(leaves, ())
    actions = distribution.sample(params, rng.normal(0, 1, (9, 2)).astype(np.float32))
    subject = Estimator(1, distribution)
    subject.observe(0, leaves, (), params, actions, distribution.log_prob(params, actions))
    # Two means of variance 1, each 0.1 away: 2 * 0.1 ** 2 / 2.
    assert subject.measure(shifted(0.1)).divergence[0] == pytest.approx(0.01, rel=1e-3)


# After a sync.


def test_after_a_sync_the_new_pair_is_compared() -> None:
    data = rows(1, 40)
    subject = estimator()
    subject.observe(0, *data)
    subject.rebase(NEW)
    again = subject.measure(NEW)
    assert again.divergence.tolist() == [0.0]
    assert again.ess == pytest.approx([1.0])
    expected = kl_by_hand(NEW(data[0], ()), OTHER(data[0], ()))
    assert subject.measure(OTHER).divergence[0] == pytest.approx(expected, rel=1e-5)


def test_after_a_sync_log_probabilities_of_other_actions_tell_nothing() -> None:
    subject = estimator(2, divergence="logp")
    for worker in range(2):
        subject.observe(worker, *rows(worker, 40), version=Version(0, 0))
    subject.rebase(NEW, workers=[0], version=Version(0, 1))
    assert not subject.observe(0, *rows(2, 40), version=Version(0, 0)), "they were under way"
    measured = subject.measure(OTHER)
    assert measured.rows.tolist() == [0, 40]
    assert measured.divergence[0] == 0.0
    assert np.isnan(measured.ess).tolist() == [True, False]
    subject.observe(0, *rows(3, 40, NEW), version=Version(0, 1))
    assert subject.measure(NEW).divergence[0] == pytest.approx(0.0, abs=1e-9)
    assert subject.measure(OTHER).divergence[0] > 0.0


def test_a_sync_of_one_node_leaves_the_others_alone() -> None:
    subject = estimator(3)
    for worker in range(3):
        subject.observe(worker, *rows(worker, 20))
    before = subject.measure(NEW).divergence
    subject.rebase(NEW, workers=[0, 2])
    after = subject.measure(NEW).divergence
    assert after.tolist() == [0.0, before[1], 0.0]


def test_rows_that_were_under_way_during_a_sync_show_no_drift() -> None:
    old, new = Version(0, 3), Version(0, 4)
    subject = estimator(2)
    subject.observe(0, *rows(1, 20), version=old)
    subject.rebase(NEW, version=new)
    assert not subject.observe(0, *rows(2, 20), version=old)
    assert subject.measure(NEW).divergence.tolist() == [0.0, 0.0]
    # Worker 1 had no sample yet; its late rows are late all the same.
    assert not subject.observe(1, *rows(2, 20), version=old)
    assert subject.observe(0, *rows(2, 20, NEW), version=new)
    assert subject.observe(0, *rows(3, 20, NEW))
    assert not subject.observe(0, *rows(2, 20), version=old), "rows without a version change no version"


def test_fresh_means_data_since_the_last_measurement() -> None:
    subject = estimator()
    assert not subject.fresh
    leaves, state, *rest = rows(1, 3)
    assert not subject.observe(0, [leaf[:0] for leaf in leaves], state, *(column[:0] for column in rest))
    assert not subject.fresh
    subject.observe(0, *rows(1, 3))
    assert subject.fresh
    subject.measure(NEW)
    assert not subject.fresh


# The parts.


@given(st.integers(1, 5000), st.integers(1, 100))
@settings(max_examples=80)
def test_a_spread_choice_is_different_rows_from_all_parts(count: int, most: int) -> None:
    chosen = _spread(count, most)
    assert len(chosen) == min(count, most)
    assert (np.diff(chosen) > 0).all()
    assert chosen[0] >= 0
    assert chosen[-1] < count
    gaps = np.diff([-1, *chosen, count])
    assert gaps.max() <= 2 * (count / len(chosen) + 1)


@pytest.mark.parametrize("envs", [2, 8, 16, 64])
def test_a_spread_choice_sees_all_environments(envs: int) -> None:
    # 128 steps of `envs` environments, step by step: a stride of 2 * envs would see a single one.
    seen = set((_spread(128 * envs, 64) % envs).tolist())
    assert len(seen) >= min(envs, 32)


def test_the_effective_size_in_the_limits() -> None:
    nothing, log2 = -np.inf, np.log(2)
    ratios = np.array(
        [[0.0, 0.0, nothing], [0.0, nothing, nothing], [nothing] * 3, [900.0, 900.0, -900.0], [0, log2, log2]]
    )
    assert _effective(ratios) == pytest.approx([2.0, 1.0, 0.0, 2.0, 25 / 9])


def test_an_action_that_the_new_policy_would_never_take_is_infinitely_far() -> None:
    def masked(leaves: Sequence[Array], state: tuple[Array, ...]) -> Array:
        return np.tile(np.array([0.0, -np.inf, -np.inf], np.float32), (len(leaves[0]), 1))

    leaves, _, params, _, _ = rows(1, 4)
    ones = np.ones(4, np.int64)
    for kind in ("auto", "logp"):
        subject = estimator(divergence=kind)
        subject.observe(0, leaves, (), params, ones, Categorical(ACTIONS).log_prob(params, ones))
        measured = subject.measure(masked)
        assert measured.divergence[0] > 100
        assert measured.ess[0] <= 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers=0 must be at least 1"),
        ({"workers": 5, "budget": 4}, "budget=4 rows cannot give each of 5 workers one"),
        ({"workers": 1, "per_worker": 0}, "per_worker=0 must be at least 1"),
        ({"workers": 1, "divergence": "log"}, r"unknown divergence 'log'\. Did you mean 'logp'"),
    ],
)
def test_wrong_values_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        estimator(**arguments)  # type: ignore[arg-type]


def test_wrong_types_are_refused() -> None:
    with pytest.raises(ConfigTypeError, match=r"budget=1\.5"):
        estimator(1, budget=1.5)


# Slots that are told apart.


def test_rows_are_compared_by_the_distribution_of_their_slots() -> None:
    ladder = EpsilonGreedy(ACTIONS, (0.5, 0.1, 0.3))
    rng = np.random.default_rng(1)
    slots = rng.integers(0, 3, 40)
    leaves, _, params, _, _ = rows(1, 40)
    actions = ladder.at(slots).sample(params, rng.random((40, 1), dtype=np.float32))
    logp = ladder.at(slots).log_prob(params, actions)
    subject = Estimator(2, ladder, per_worker=16)
    assert subject.observe(1, leaves, (), params, actions, logp, slots=slots)
    same = subject.measure(OLD)
    assert same.ess[1] == pytest.approx(1.0)
    subject.rebase(NEW)
    assert subject.measure(NEW).ess[1] == pytest.approx(1.0)
    assert subject.measure(OLD).ess[1] < 0.99
