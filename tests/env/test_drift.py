"""The drift of the workers' policy: the right number, whatever the number of environments and the order of arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from clusterenv.env.drift import Drift
from clusterenv.errors import PolicyError
from clusterenv.policy.adapters import as_policy
from clusterenv.sync.aps import APS
from clusterenv.sync.codec import Decoded
from clusterenv.sync.rules import Reason, Situation
from clusterenv.sync.versions import Version
from clusterenv.sync.weights import WeightSpec
from tests.env.made_up import CHOICES, Leaky, beside, columns
from tests.env.policies import Linear
from tests.env.test_batch import BOX

if TYPE_CHECKING:
    from clusterenv.transport.fragments import Columns


class Subject:
    """A drift, with the versions that go with it."""

    def __init__(self, policy: Any, workers: int = 1, **more: Any) -> None:
        made = as_policy(policy, BOX, Discrete(CHOICES))
        self.spec = WeightSpec.of(made.weights())
        self.drift = Drift(workers, made.distribution, self.spec, made.build().make, **more)

    def version(self, policy: Any, number: int = 0) -> Decoded:
        return Decoded(Version(0, number), self.spec.flatten(policy.weights()))

    def measure(self, newest: Any, held: Any, threshold: float | None = 0.05) -> list[float]:
        assert self.drift.update(self.version(newest, 1), self.version(held), threshold)
        found: list[float] = self.drift.divergence.tolist()
        return found


OLD, NEW = Linear(2, CHOICES, seed=0), Linear(2, CHOICES, seed=1)


def mean_kl(policy: Any, made: Columns, times: slice = slice(None)) -> float:
    """The divergence by the book, over these steps."""
    new, _, _ = policy.forward(policy.weights(), made.obs[0][:-1][times].reshape(-1, 2), ())
    return float(policy.distribution.divergence(made.params[times].reshape(-1, CHOICES), new).mean())


def test_the_measurement_is_the_mean_divergence() -> None:
    subject, made = Subject(OLD), columns(OLD, 16, 4)
    subject.drift.observe(0, made, 0)
    assert subject.measure(NEW, OLD)[0] == pytest.approx(mean_kl(NEW, made), rel=1e-6)
    assert subject.drift.ess is not None
    assert 0.0 < subject.drift.ess[0] < 1.0


def test_twice_the_environments_give_the_same_number() -> None:
    few, many = Subject(OLD), Subject(OLD)
    made = columns(OLD, 8, 4)
    few.drift.observe(0, made, 0)
    many.drift.observe(0, beside(made, made), 0)
    assert many.measure(NEW, OLD) == pytest.approx(few.measure(NEW, OLD), rel=1e-12)


def test_a_large_fragment_is_sampled_fairly() -> None:
    subject, made = Subject(OLD), columns(OLD, 500, 16)
    subject.drift.observe(0, made, 0)
    assert subject.measure(NEW, OLD)[0] == pytest.approx(mean_kl(NEW, made), rel=0.5)


def test_other_workers_change_nothing() -> None:
    alone, among = Subject(OLD), Subject(OLD, workers=3)
    made = columns(OLD, 8, 4)
    alone.drift.observe(0, made, 0)
    among.drift.observe(1, made, 0)
    among.drift.observe(2, columns(OLD, 8, 4, seed=7), 0)
    found = among.measure(NEW, OLD)
    assert found[1] == pytest.approx(alone.measure(NEW, OLD)[0], rel=1e-6)
    assert found[0] == 0.0, "nothing is known of it"
    assert found[2] > 0.0


def test_the_order_of_arrival_changes_nothing() -> None:
    forth, back = Subject(OLD, workers=2), Subject(OLD, workers=2)
    parts = {worker: columns(OLD, 8, 4, seed=worker) for worker in (0, 1)}
    for worker in (0, 1):
        forth.drift.observe(worker, parts[worker], 0)
        back.drift.observe(1 - worker, parts[1 - worker], 0)
    assert forth.measure(NEW, OLD) == back.measure(NEW, OLD)


def test_the_newest_fragment_counts() -> None:
    subject, fresh = Subject(OLD), columns(OLD, 8, 4, seed=2)
    subject.drift.observe(0, columns(OLD, 8, 4, seed=1), 0)
    subject.drift.observe(0, fresh, 0)
    assert subject.measure(NEW, OLD)[0] == pytest.approx(mean_kl(NEW, fresh), rel=1e-6)


def test_the_same_weights_are_no_distance_away() -> None:
    subject = Subject(OLD)
    subject.drift.observe(0, columns(OLD, 8, 4), 0)
    assert subject.measure(OLD, OLD) == pytest.approx([0.0], abs=1e-12)


def test_after_a_move_the_drift_is_nothing_and_is_measured_from_there() -> None:
    subject, made = Subject(OLD), columns(OLD, 8, 4)
    subject.drift.observe(0, made, 0)
    assert subject.measure(NEW, OLD)[0] > 0.0
    subject.drift.rebase(subject.version(NEW, 1))
    assert subject.drift.divergence.tolist() == [0.0]
    subject.drift.observe(0, columns(NEW, 8, 4, version=1), 0)
    assert subject.measure(NEW, NEW) == pytest.approx([0.0], abs=1e-12)
    subject.drift.observe(0, columns(NEW, 8, 4, version=1), 0)
    assert subject.measure(OLD, NEW)[0] > 0.0


def test_after_a_move_the_old_sample_size_steers_no_threshold() -> None:
    subject, decider = Subject(OLD), APS(target_ess=0.999, stall_after=None).start(1)
    decider.synced(Version(0, 0), Reason.FIRST, now_s=0.0)
    subject.drift.observe(0, columns(OLD, 8, 4), 0)
    subject.measure(NEW, OLD)

    def ask(held: int, newest: int, batches: int) -> Reason | None:
        drift = subject.drift
        situation = Situation(
            held=Version(0, held),
            newest=Version(0, newest),
            divergence=drift.divergence,
            ess=drift.ess,
            now_s=float(batches),
            batches=batches,
        )
        return decider.consider(situation)

    assert ask(held=0, newest=1, batches=1) is Reason.DIVERGENCE
    decider.synced(Version(0, 1), Reason.DIVERGENCE, now_s=1.0)
    subject.drift.rebase(subject.version(NEW, 1))
    before = decider.threshold
    # Fragments that were under way are too late to be measured, but the learner takes them as batches.
    for number in (2, 3, 4):
        subject.drift.observe(0, columns(OLD, 8, 4, version=0), 0)
        assert not subject.drift.update(subject.version(NEW, number), subject.version(NEW, 1), before)
        assert ask(held=1, newest=number, batches=number) is None
    assert decider.threshold == before


def test_rows_of_an_older_version_come_too_late() -> None:
    subject = Subject(OLD)
    subject.drift.rebase(subject.version(NEW, 1))
    subject.drift.observe(0, columns(OLD, 8, 4, version=0), 0)
    assert not subject.drift._estimator.fresh
    subject.drift.observe(0, columns(NEW, 8, 4, version=1), 0)
    assert subject.drift._estimator.fresh
    subject.drift.observe(0, columns(OLD, 8, 4, version=0), 0)
    assert subject.measure(NEW, NEW) == pytest.approx([0.0], abs=1e-12)


def test_of_a_fragment_with_two_versions_only_the_newer_rows_count() -> None:
    subject = Subject(OLD)
    before, after = columns(OLD, 3, 4, seed=1), columns(NEW, 5, 4, seed=2, version=1)
    rows: Any = {
        name: np.concatenate([getattr(before, name), getattr(after, name)])
        for name in ("params", "action", "logp", "version")
    }
    made = after._replace(obs=[np.concatenate([before.obs[0][:3], after.obs[0]])], **rows)
    subject.drift.observe(0, made, 0)
    assert subject.measure(NEW, NEW) == pytest.approx([0.0], abs=1e-12)
    assert subject.drift._estimator.measure(
        lambda leaves, state: np.zeros((len(leaves[0]), CHOICES))
    ).rows.tolist() == [20]


# Recurrent policies.


def test_of_a_recurrent_policy_the_first_steps_are_compared() -> None:
    old, new = Leaky(0), Leaky(1)
    subject, made = Subject(old), columns(old, 6, 10, state=True)
    subject.drift.observe(0, made, 0)
    params, _, _ = new.forward(new.weights(), made.obs[0][0], tuple(made.state))
    expected = float(new.distribution.divergence(made.params[0], params).mean())
    assert subject.measure(new, old)[0] == pytest.approx(expected, rel=1e-6)


def test_a_recurrent_fragment_whose_version_changed_on_the_way_is_left_out() -> None:
    old = Leaky(0)
    subject, made = Subject(old), columns(old, 6, 10, state=True)
    made.version[2:] = 1
    subject.drift.observe(0, made, 0)
    assert not subject.drift._estimator.fresh


def test_where_every_state_is_known_every_step_is_compared() -> None:
    old, new = Leaky(0), Leaky(1)
    subject, made = Subject(old), columns(old, 6, 10, state=True, every_state=True)
    assert made.states is not None
    subject.drift.observe(0, made, 0)
    flat = made.obs[0][:-1].reshape(-1, 2), (made.states[0].reshape(-1, 2),)
    params, _, _ = new.forward(new.weights(), *flat)
    expected = float(new.distribution.divergence(made.params.reshape(-1, CHOICES), params).mean())
    assert subject.measure(new, old)[0] == pytest.approx(expected, rel=1e-6)


# When it is measured.


def test_without_new_data_only_some_versions_are_measured() -> None:
    subject = Subject(OLD)
    subject.drift.observe(0, columns(OLD, 8, 4), 0)
    near = Linear(2, CHOICES, seed=0)
    measured = []
    for _ in range(20):
        near.nudge(1e-4)
        measured.append(subject.drift.update(subject.version(near, 1), subject.version(OLD), 0.05))
    assert measured[0]
    assert 1 < sum(measured) < 6


def test_without_any_data_nothing_is_measured() -> None:
    subject = Subject(OLD, divergence="logp")
    subject.drift.observe(0, columns(OLD, 8, 4), 0)
    assert subject.measure(NEW, OLD)[0] > 0.0
    subject.drift.rebase(subject.version(NEW, 1))
    assert not any(subject.drift.update(subject.version(OLD, 2), subject.version(NEW, 1), 0.05) for _ in range(20))
    assert subject.drift.divergence.tolist() == [0.0]
    subject.drift.observe(0, columns(NEW, 8, 4, version=1), 0)
    assert subject.measure(OLD, NEW)[0] > 0.0


def test_a_rule_without_a_threshold_is_measured_too() -> None:
    subject = Subject(OLD)
    subject.drift.observe(0, columns(OLD, 8, 4), 0)
    assert subject.measure(NEW, OLD, None)[0] > 0.0


# Policies that fail.


class Sick(Linear):
    """Raises, or gives NaN, if its weights say so."""

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        params, value, state = super().forward(weights, obs, state)
        if weights["slope"][0] > 100.0:
            if weights["slope"][1] > 100.0:
                raise ZeroDivisionError("sick")
            params[-1, 0] = np.nan
        return params, value, state


@pytest.mark.fault("F59")
@pytest.mark.parametrize(
    ("slope", "complaint"),
    [([200.0, 0.0], "Sick gives NaN"), ([200.0, 200.0], "Sick failed .* ZeroDivisionError: sick")],
)
def test_a_policy_that_fails_is_named(slope: list[float], complaint: str) -> None:
    policy = Sick(2, CHOICES)
    subject = Subject(policy, name="Sick")
    subject.drift.observe(0, columns(policy, 8, 4), 0)
    broken = Sick(2, CHOICES)
    broken.slope = np.array(slope, np.float32)
    with pytest.raises(PolicyError, match=complaint):
        subject.measure(broken, policy)


@pytest.mark.parametrize(("observation_size", "rows"), [(2, 64), (4_000_000 // 20, 20), (10**9, 16)])
def test_the_larger_the_observations_the_fewer_are_looked_at(observation_size: int, rows: int) -> None:
    policy, broken = Sick(2, CHOICES), Sick(2, CHOICES)
    broken.slope = np.array([200.0, 200.0], np.float32)
    subject = Subject(policy, observation_size=observation_size)
    subject.drift.observe(0, columns(policy, 40, 4), 0)
    with pytest.raises(PolicyError, match=f"on {rows} observations"):
        subject.measure(broken, policy)


def test_weights_that_were_just_measured_are_not_run_again() -> None:
    policy, broken = Sick(2, CHOICES), Sick(2, CHOICES)
    broken.slope = np.array([200.0, 200.0], np.float32)
    subject, made = Subject(policy), columns(policy, 8, 4)
    subject.drift.observe(0, made, 0)
    subject.measure(policy, policy)
    subject.drift.rebase(subject.version(broken, 1))  # the same version: it would raise if it ran
    subject.drift.observe(0, columns(policy, 8, 4, version=1), 0)
    with pytest.raises(PolicyError, match="sick"):
        subject.drift.rebase(subject.version(broken, 1))
