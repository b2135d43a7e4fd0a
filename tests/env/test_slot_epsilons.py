"""Slots that explore more than others: each worker knows which slots are its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clusterenv.errors import ConfigError
from clusterenv.policy.distributions import EpsilonGreedy
from tests.env.policies import CHOICES, Linear, wide

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

# Across two workers of two slots: one of each explores all the time, the other never.
EPSILONS = (0.0, 1.0, 1.0, 0.0)


def attached(make: Make, epsilon: Any, **kwargs: Any) -> ClusterEnv:
    envs, policy = make(wide(4, 10)), Linear()
    policy.distribution = EpsilonGreedy(CHOICES, epsilon)  # type: ignore[assignment]
    envs.reset(seed=1)
    envs.attach(policy, seed=5, **{"sync": "on-change", **kwargs})
    return envs


def test_every_slot_explores_with_its_own_epsilon(make: Make) -> None:
    batch = attached(make, EPSILONS).rollout(50)
    greedy = (batch.action == batch.params.argmax(-1)).mean(0)
    assert greedy[[0, 3]].tolist() == [1.0, 1.0]
    assert (greedy[[1, 2]] < 0.2).all()
    np.testing.assert_allclose(np.exp(batch.logp), np.tile([1, 1 / CHOICES, 1 / CHOICES, 1], (50, 1)), rtol=1e-5)


def test_all_act_greedily_by_the_mode(make: Make) -> None:
    batch = attached(make, EPSILONS, deterministic=True).rollout(20)
    np.testing.assert_array_equal(batch.action, batch.params.argmax(-1))


def test_actions_are_those_of_one_epsilon_where_all_are_equal(make: Make) -> None:
    one, each = (attached(make, epsilon).rollout(20) for epsilon in (0.3, (0.3,) * 4))
    np.testing.assert_array_equal(one.action, each.action)


def test_drift_is_measured_slot_by_slot(make: Make) -> None:
    envs = attached(make, (0.3, 0.05, 0.1, 0.2), sync="aps:0.9", encoding="fp32")
    envs.rollout(50)
    envs.publish(Linear())  # the same weights: whoever mixed up the slots would see another policy
    stats = envs.stats()
    assert stats["ess"]["min"] == pytest.approx(1.0)
    assert stats["divergence"]["mean"] == 0.0


@pytest.mark.parametrize("count", [1, 3, 5])
def test_another_number_of_epsilons_than_environments_is_refused(make_here: Make, count: int) -> None:
    with pytest.raises(ConfigError, match=rf"one epsilon for each of {count} slot\(s\), but there are 4 environments"):
        attached(make_here, (0.1,) * count)
