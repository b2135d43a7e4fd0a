"""One update: where advantages and targets come from, and what a batch does to the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from clusterenv.learners.ppo import PPOConfig
from clusterenv.learners.ppo.update import PPOUpdater
from clusterenv.metrics import keys
from tests.learners.batches import SPACES, N, T, made_up

if TYPE_CHECKING:
    from clusterenv.env.batch import Batch

GAMMA, LAMBDA = 0.9, 0.8


@torch.no_grad()
def values(subject: PPOUpdater, data: Batch) -> torch.Tensor:
    return subject.network.value(data.obs.flatten(0, 1)).view(T + 1, N)


def updater(**changes: Any) -> PPOUpdater:
    settings: dict[str, Any] = {"num_envs": N, "rollout_steps": T, "minibatches": 2, "gamma": GAMMA}
    settings |= {"gae_lambda": LAMBDA, "hidden": (8,), **changes}
    return PPOUpdater(PPOConfig(**settings), *SPACES)


def at(flat: torch.Tensor, t: int, n: int) -> float:
    return float(flat[t * N + n])


def test_a_rollout_that_goes_on_counts_on_the_newest_critic() -> None:
    subject, data = updater(), made_up()
    samples, _ = subject.samples(data)
    value = values(subject, data)
    expected = data.reward[T - 1] + GAMMA * value[T] - value[T - 1]
    assert [at(samples.advantage, T - 1, n) for n in range(N)] == pytest.approx(expected.tolist(), rel=1e-5)
    torch.testing.assert_close(samples.target, samples.advantage + value[:-1].flatten())


def test_a_truncation_counts_on_the_last_observation_of_its_episode() -> None:
    truncated = np.zeros((T, N), bool)
    truncated[1, 0] = True
    last = np.full((1, 3), 0.7, np.float32)
    data = made_up(truncated=truncated, final_obs=last, final_at=(np.array([1]), np.array([0])))
    subject = updater()
    samples, _ = subject.samples(data)
    value = values(subject, data)
    final = subject.network.value(torch.from_numpy(last)).item()
    expected = float(data.reward[1, 0]) + GAMMA * final - float(value[1, 0])
    assert at(samples.advantage, 1, 0) == pytest.approx(expected, rel=1e-5)


def test_a_termination_counts_on_nothing() -> None:
    terminated = np.zeros((T, N), bool)
    terminated[1, 0] = True
    last = np.full((1, 3), 0.7, np.float32)
    data = made_up(terminated=terminated, final_obs=last, final_at=(np.array([1]), np.array([0])))
    subject = updater()
    samples, _ = subject.samples(data)
    value = values(subject, data)
    assert at(samples.advantage, 1, 0) == pytest.approx(float(data.reward[1, 0] - value[1, 0]), rel=1e-5)


def test_rewards_are_cut_and_scaled_where_it_is_asked_for() -> None:
    given = np.full((T, N), 5.0)
    changed, _ = updater(reward="clip", reward_scale=0.5).samples(made_up(reward=given))
    same, _ = updater().samples(made_up(reward=given / 10))
    torch.testing.assert_close(changed.target, same.target)


def test_rows_of_the_samples_belong_together() -> None:
    data = made_up()
    samples, _ = updater().samples(data)
    row = 2 * N + 1
    assert torch.equal(samples.obs[row], data.obs[2, 1])
    assert samples.action[row] == data.action[2, 1]
    assert samples.logp[row] == data.logp[2, 1]
    assert len(samples.logp) == T * N


def test_better_actions_become_likelier_and_the_value_nearer() -> None:
    reward = np.ones((T, N))
    data = made_up(reward=reward, action=np.array([[0, 1]] * T))
    data.reward[:, 1] = -1.0  # the slot that chose 1 is punished
    subject = updater(epochs=20, gamma=0.0, learning_rate=0.05, clip=10.0, max_grad_norm=10.0, entropy_coef=0.0)
    first, _ = subject.samples(data)
    before = (first.target - subject.network.value(first.obs)).square().mean().item()
    params = subject.network(first.obs)[0].softmax(-1)
    told = subject.update(data, 1.0, lambda: None)
    better = subject.network(first.obs)[0].softmax(-1)
    assert (better[0::2, 0] > params[0::2, 0]).all()
    assert (better[1::2, 1] < params[1::2, 1]).all()
    assert (first.target - subject.network.value(first.obs)).square().mean().item() < before
    assert told["losses/entropy"] > 0


def test_data_of_an_older_policy_is_weighed_by_its_own_probabilities() -> None:
    """The same data with another behaviour log-probability gives another gradient."""
    weights = []
    for logp in (np.log(0.5), np.log(0.6)):
        subject = updater(epochs=1, minibatches=1, clip=10.0)
        subject.update(made_up(logp=np.full((T, N), logp, np.float32)), 1.0, lambda: None)
        weights.append(torch.cat([p.flatten() for p in subject.network.actor.parameters()]))
    assert not torch.equal(*weights)


def test_beyond_the_clip_old_data_teaches_the_actor_nothing() -> None:
    subject = updater(epochs=1, minibatches=1, normalize_advantage=False, entropy_coef=0.0)
    before = [parameter.clone() for parameter in subject.network.actor.parameters()]
    # The learner finds every action three times as likely as the policy that acted; all advantages are positive.
    subject.update(
        made_up(logp=np.full((T, N), np.log(0.5 / 3), np.float32), reward=np.full((T, N), 1e3)), 1.0, lambda: None
    )
    for old, new in zip(before, subject.network.actor.parameters(), strict=True):
        assert torch.equal(old, new)


def test_a_large_value_loss_does_not_drown_the_actor() -> None:
    """Advantages are normalised, so the size of the rewards must not change what the actor learns."""
    moved = []
    for size in (1.0, 1e4):
        subject = updater(epochs=1, minibatches=1, learning_rate=1e-3, gamma=0.0, max_grad_norm=1e-3)
        subject.optimizer = torch.optim.SGD(subject.network.parameters(), lr=1.0)
        data = made_up(reward=size * np.random.default_rng(1).normal(size=(T, N)))
        with torch.no_grad():
            for parameter in subject.network.get_submodule("critic").parameters():
                parameter.zero_()
        before = torch.cat([parameter.flatten() for parameter in subject.network.actor.parameters()])
        subject.update(data, 1.0, lambda: None)
        after = torch.cat([parameter.flatten() for parameter in subject.network.actor.parameters()])
        moved.append((after - before).norm().item())
    assert moved[0] == pytest.approx(moved[1], rel=1e-2)
    assert moved[0] == pytest.approx(1e-6, rel=1e-2)  # learning rate x largest norm


@pytest.mark.parametrize(
    ("settings", "times"),
    [({}, 1), ({"mode": "stream", "stream_slots": N, "publish_every": "gradient step"}, 12)],
)
def test_it_publishes_once_or_after_each_gradient_step(settings: dict[str, Any], times: int) -> None:
    published: list[int] = []
    updater(epochs=3, minibatches=4, **settings).update(made_up(), 1.0, lambda: published.append(1))
    assert len(published) == times


def test_the_divergence_is_told_of_the_last_pass_and_all_else_of_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, passes = updater(epochs=2), iter([1.0, 3.0])
    names = [metric.name for metric in (keys.POLICY_LOSS, keys.APPROX_KL)]
    monkeypatch.setattr(subject, "_pass", lambda *_: dict.fromkeys(names, torch.tensor(next(passes))))
    told = subject.update(made_up(), 1.0, lambda: None)
    assert (told[keys.POLICY_LOSS.name], told[keys.APPROX_KL.name]) == (2, 3)


def test_what_is_saved_is_all_there_is() -> None:
    data = made_up()
    one, other = updater(normalize_observations=True), updater(normalize_observations=True, seed=5)
    one.update(data, 1.0, lambda: None)
    other.restore(one.tensors())
    for subject in (one, other):
        subject.update(data, 0.5, lambda: None)
    for left, right in zip(one.network.state_dict().values(), other.network.state_dict().values(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(("hidden", "layers"), [(None, 3), ((8,), 2), ((), 1)])
def test_no_hidden_layers_is_a_choice_too(hidden: tuple[int, ...] | None, layers: int) -> None:
    network = updater(hidden=hidden).network
    for part in (network.actor, network.get_submodule("critic")):
        assert sum(isinstance(layer, torch.nn.Linear) for layer in part.children()) == layers
