"""One update of V-MPO: what a batch does to the networks and the multipliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.learners.vmpo import VMPOConfig
from clusterenv.learners.vmpo.update import VMPOUpdater
from tests.learners.batches import N, T, made_up

GAMMA = 0.9


def updater(*, actions: Any = None, **changes: Any) -> VMPOUpdater:
    settings: dict[str, Any] = {"num_envs": N, "rollout_steps": T, "gamma": GAMMA, "hidden": (8,)}
    config = VMPOConfig(**{**settings, **changes})
    return VMPOUpdater(config, spaces.Box(-1, 1, (3,)), spaces.Discrete(2) if actions is None else actions)


def learn(subject: VMPOUpdater, data: Any, left: float = 1.0) -> dict[str, float]:
    return subject.update(data, left, lambda: None)


def returns(subject: VMPOUpdater, data: Any) -> torch.Tensor:
    return subject.aim(data).returns


@torch.no_grad()
def values(subject: VMPOUpdater, data: Any) -> torch.Tensor:
    _, value, _ = subject.network(data.obs.flatten(0, 1))
    return torch.as_tensor(value).view(T + 1, N)


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.parametrize("popart", [True, False])
def test_returns_reach_to_the_end_of_the_fragment_by_the_newest_critic(popart: bool) -> None:
    subject, data = updater(popart=popart), made_up()
    expected = values(subject, data)[T]
    for t in reversed(range(T)):
        expected = data.reward[t] + GAMMA * expected
    torch.testing.assert_close(returns(subject, data)[0], expected)


def test_a_truncation_counts_on_its_own_last_observation_and_a_termination_on_nothing() -> None:
    ends = np.zeros((T, N), bool)
    ends[1, 0] = True
    last = np.full((1, 3), 0.7, np.float32)
    given: dict[str, Any] = {"final_obs": last, "final_at": (np.array([1]), np.array([0]))}
    subject = updater()
    cut, over = made_up(truncated=ends, **given), made_up(terminated=ends, **given)
    final = subject.network(torch.from_numpy(last))[1].item()
    assert returns(subject, cut)[1, 0].item() == pytest.approx(cut.reward[1, 0].item() + GAMMA * final, rel=1e-5)
    assert returns(subject, over)[1, 0].item() == pytest.approx(over.reward[1, 0].item(), rel=1e-5)


def test_rewards_are_cut_where_it_is_asked_for() -> None:
    given = np.array([[5.0, -5.0]] * T)
    cut, same = updater(reward="clip"), updater()
    torch.testing.assert_close(returns(cut, made_up(reward=given)), returns(same, made_up(reward=given / 5)))


def test_the_better_half_becomes_likelier_and_the_value_nearer() -> None:
    reward = np.array([[1.0, -1.0]] * T)
    data = made_up(reward=reward, action=np.array([[0, 1]] * T))
    subject = updater(gamma=0.0, learning_rate=0.01, popart=False)
    rows = data.obs[:-1].flatten(0, 1)
    before = subject.network(rows)
    for _ in range(20):
        learn(subject, data)
    after = subject.network(rows)
    assert (after[0].softmax(-1)[0::N, 0] > before[0].softmax(-1)[0::N, 0]).all()  # the slot that was rewarded
    target = data.reward.flatten()
    assert (after[1] - target).square().mean() < (before[1] - target).square().mean()


def test_the_worse_half_teaches_the_policy_nothing() -> None:
    """Whatever the punished slot did, the gradient of the actor is the same."""
    moved = []
    for other in (0, 1):
        subject = updater(gamma=0.0, epsilon_kl=1e6, kl_multiplier=1e-8)
        learn(subject, made_up(reward=np.array([[9.0, -9.0]] * T), action=np.array([[0, other]] * T)))
        moved.append(weights(subject.network.get_submodule("actor")))
    assert torch.equal(*moved)


def test_more_passes_are_more_gradient_steps_toward_the_same_aim() -> None:
    data = made_up(reward=np.array([[1.0, -1.0]] * T), action=np.array([[0, 1]] * T))
    once, often = (updater(passes=passes, gamma=0.0, learning_rate=0.01) for passes in (1, 8))
    for subject in (once, often):
        learn(subject, data)
    assert often.optimizer.state_dict()["state"][0]["step"] == 8
    rows = data.obs[:-1, 0]
    assert (often.network(rows)[0].softmax(-1)[:, 0] > once.network(rows)[0].softmax(-1)[:, 0]).all()
    assert torch.equal(once.aim(data).returns, often.aim(data).returns)
    assert often._updates == 1  # generations are counted in batches


def test_the_policy_that_acts_is_renewed_and_published_once_in_a_while() -> None:
    subject, published = updater(target_period=3), []
    fresh = weights(subject.acting)
    for update in range(1, 7):
        subject.update(made_up(), 1.0, lambda: published.append(1))
        assert len(published) == update // 3
        if update < 3:
            assert torch.equal(weights(subject.acting), fresh)
        if update % 3 == 0:
            assert torch.equal(weights(subject.acting), weights(subject.network.policy_only()))
        else:
            assert not torch.equal(weights(subject.acting), weights(subject.network.policy_only()))
    assert not any(parameter.requires_grad for parameter in subject.acting.parameters())


def test_the_multiplier_grows_while_the_policy_is_too_far_and_falls_while_it_is_near() -> None:
    near, far = updater(), updater()
    learn(near, made_up())
    params = np.tile(np.array([3.0, -3.0], np.float32), (T, N, 1))
    told = learn(far, made_up(params=params))
    assert near.multipliers.kl.item() < 1.0 < far.multipliers.kl.item()
    assert told["losses/approx_kl"] > 0.5
    assert told["losses/kl_multiplier"] == far.multipliers.kl.item()


def test_the_trust_region_draws_the_policy_back_to_the_one_that_acted() -> None:
    params = np.tile(np.array([1.0, -1.0], np.float32), (T, N, 1))
    subject = updater(kl_multiplier=1e3, learning_rate=0.02)
    told = [learn(subject, made_up(params=params))["losses/approx_kl"] for _ in range(40)]
    assert told[-1] < 0.05 * told[0]


def test_multipliers_stay_above_nothing() -> None:
    subject = updater(multiplier_rate=10.0, kl_multiplier=1.0, temperature=1.0, epsilon_temperature=100.0)
    learn(subject, made_up())
    assert subject.multipliers.kl.item() == pytest.approx(1e-8)
    assert subject.multipliers.temperature.item() == pytest.approx(1e-8)
    told = learn(subject, made_up())
    assert all(np.isfinite(value) for value in told.values())


def test_the_temperature_settles_where_the_weights_are_as_unequal_as_allowed() -> None:
    subject = updater(multiplier_rate=0.2, epsilon_temperature=0.1, learning_rate=1e-9, popart=False)
    for _ in range(100):
        told = learn(subject, made_up())
    assert told["losses/psi_kl"] == pytest.approx(0.1, abs=0.01)


def test_with_popart_the_size_of_the_rewards_changes_little() -> None:
    moved = []
    for size in (1.0, 1e4):
        subject = updater(gamma=0.0, popart_rate=1.0, max_grad_norm=1e6)
        assert subject.head is not None
        torch.nn.init.zeros_(subject.head.weight)
        learn(subject, made_up(reward=size * np.random.default_rng(1).normal(size=(T, N))))
        moved.append(weights(subject.network.get_submodule("actor")))
        assert subject.head.std.item() == pytest.approx(size, rel=0.5)
    torch.testing.assert_close(*moved, rtol=1e-3, atol=1e-5)


def test_popart_moves_by_the_returns_in_the_units_of_the_rewards() -> None:
    subject, data = updater(popart_rate=1.0, gamma=0.0), made_up(reward=np.array([[3.0, 7.0]] * T))
    learn(subject, data)
    assert subject.head is not None
    assert (subject.head.mean.item(), subject.head.std.item()) == pytest.approx((5.0, 2.0))


@pytest.mark.parametrize("size", [1, 3])
def test_continuous_actions_have_two_trust_regions(size: int) -> None:
    subject = updater(actions=spaces.Box(-1, 1, (size,)), epsilon_spread=1e-6)
    data = made_up(
        action=np.random.default_rng(0).normal(size=(T, N, size)).astype(np.float32),
        params=np.zeros((T, N, 2 * size), np.float32),
    )
    for _ in range(5):
        told = learn(subject, data)
    assert subject.multipliers.kl.shape == (2,)
    assert {"losses/kl_spread", "losses/kl_multiplier", "losses/kl_multiplier_spread"} <= set(told)
    assert told["losses/kl_multiplier"] < 1.0 < told["losses/kl_multiplier_spread"]


def test_learning_rates_fall_together_if_they_fall() -> None:
    subject = updater(anneal=True, learning_rate=0.1, multiplier_rate=0.5)
    learn(subject, made_up(), left=0.5)
    assert [group["lr"] for group in subject.optimizer.param_groups] == [0.05, 0.25]
    steady = updater(learning_rate=0.1, multiplier_rate=0.5)
    learn(steady, made_up(), left=0.5)
    assert [group["lr"] for group in steady.optimizer.param_groups] == [0.1, 0.5]


def test_an_entropy_bonus_is_possible() -> None:
    plain, bonus = updater(learning_rate=0.01), updater(entropy_coef=10.0, learning_rate=0.01)
    for subject in (plain, bonus):
        for _ in range(20):
            told = learn(subject, made_up(reward=np.array([[1.0, -1.0]] * T), action=np.array([[0, 1]] * T)))
    assert told["losses/entropy"] > learn(plain, made_up())["losses/entropy"]


def test_what_is_saved_is_all_there_is() -> None:
    data = made_up()
    one, other = (updater(normalize_observations=True, target_period=3, seed=seed) for seed in (1, 5))
    for _ in range(4):
        learn(one, data)
    other.restore(one.tensors())
    assert torch.equal(weights(other.target), weights(one.target))
    assert not torch.equal(weights(other.target), weights(one.network))
    for subject in (one, other):
        for _ in range(2):  # the second renews the target
            learn(subject, data)
    for left, right in ((one.network, other.network), (one.target, other.target), (one.multipliers, other.multipliers)):
        for mine, theirs in zip(left.state_dict().values(), right.state_dict().values(), strict=True):
            assert torch.equal(mine, theirs)
    assert torch.equal(weights(other.target), weights(other.network))


def test_an_update_without_a_batch_is_refused() -> None:
    subject = updater()
    with pytest.raises(ValueError, match="needs a new one"):
        subject.update(None, 1.0, lambda: None)
