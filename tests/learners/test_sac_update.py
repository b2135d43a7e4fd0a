"""One update of SAC: against a slow twin of separate modules and optimisers, and part by part."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.learners.common import torch_distributions
from clusterenv.learners.replay.priorities import Sample
from clusterenv.learners.replay.transitions import Transitions
from clusterenv.learners.replay.updater import Drawn, on_device
from clusterenv.learners.sac.config import SACConfig
from clusterenv.learners.sac.update import SACUpdater
from clusterenv.metrics import keys
from tests.learners.batches import N, T, made_up_arrays

if TYPE_CHECKING:
    from collections.abc import Iterator

SPACES = spaces.Box(-1, 1, (3,)), spaces.Box(np.array([-2, 0], np.float32), np.array([2, 5], np.float32))
ROWS = 8


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the loop has it; threads that wait for each other take most of the time of networks this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def updater(**changes: Any) -> SACUpdater:
    settings: dict[str, Any] = {
        "num_envs": N,
        "hidden": (16, 8),
        "sample_size": ROWS,
        "samples_per_insert": float(ROWS),
        "learning_starts": 2,
        "capacity": 200,
        "max_grad_norm": 1e9,
    }
    return SACUpdater(SACConfig(**{**settings, **changes}), *SPACES)


def sample(seed: int = 0, **changes: Any) -> Drawn:
    source = np.random.default_rng(seed)
    data = {
        "obs": source.normal(size=(ROWS, 3)).astype(np.float32),
        "action": source.uniform([-2, 0], [2, 5], (ROWS, 2)).astype(np.float32),
        "reward": source.normal(size=ROWS).astype(np.float32),
        "discount": np.where(source.random(ROWS) < 0.3, 0.0, 0.99).astype(np.float32),
        "next_obs": source.normal(size=(ROWS, 3)).astype(np.float32),
    }
    weights = source.uniform(0.5, 1.0, ROWS).astype(np.float32)
    return on_device(Sample(np.arange(ROWS), weights, Transitions(**{**data, **changes})), "cpu")


def batch(**changes: Any) -> Any:
    source = np.random.default_rng(0)
    action = source.uniform([-2, 0], [2, 5], (T, N, 2)).astype(np.float32)
    return made_up_arrays(action=action, params=np.zeros((T, N, 4), np.float32), value=None, **changes)


def slow_twin(subject: SACUpdater, drawn: Drawn) -> tuple[Any, Any, Any]:
    """Policy, Q functions and temperature after one step, each by a loss, a gradient and an Adam of its own."""
    config, data = subject.config, drawn.data
    actor, critic = copy.deepcopy(subject.network.actor), copy.deepcopy(subject.network.critic)
    log_temperature = subject.network.log_temperature.detach().clone().requires_grad_()
    temperature, noise = log_temperature.exp().item(), torch.Generator().manual_seed(config.seed)

    def play(obs: Any) -> tuple[Any, Any]:
        params = actor(obs)[0]
        drawn_noise = torch.randn(ROWS, 2, generator=noise)
        actions, _ = torch_distributions.draw(actor.distribution, params, drawn_noise)
        # By the density of an action that is given, in units in which the bounds are -1 and 1: halves of 2 and 2.5.
        mean, log_std = params.chunk(2, -1)
        inside = torch.atanh((actions - torch.tensor([0.0, 2.5])) / torch.tensor([2.0, 2.5]))
        normal: Any = torch.distributions.Normal(mean, log_std.exp())
        logp = normal.log_prob(inside) - torch.log(1 - torch.tanh(inside) ** 2)
        return actions, logp.sum(-1)

    with torch.no_grad():
        actions, logp = play(data.next_obs)
        worth = subject.target(data.next_obs, actions).min(0).values - temperature * logp
        aim = data.reward + data.discount * worth
    error = critic(data.obs, data.action) - aim
    actions, logp = play(data.obs)
    q = subject.network.critic(data.obs, actions).min(0).values
    losses = (
        (temperature * logp - q).mean(),
        (error[0] ** 2 * drawn.weights).mean() / 2 + (error[1] ** 2 * drawn.weights).mean() / 2,
        -(log_temperature * (logp.detach() + subject.target_entropy)).mean(),
    )
    parts: tuple[list[Any], ...] = (list(actor.parameters()), list(critic.parameters()), [log_temperature])
    rates = (config.learning_rate, config.critic_rate, config.temperature_rate)
    for loss, part, rate in zip(losses, parts, rates, strict=True):
        for parameter, gradient in zip(part, torch.autograd.grad(loss, part), strict=True):
            parameter.grad = gradient
        torch.optim.Adam(part, lr=rate).step()
    return actor, critic, log_temperature


def test_one_step_is_that_of_separate_losses_and_optimisers() -> None:
    subject, drawn = updater(temperature=0.3), sample()
    with torch.no_grad():  # or nobody could tell the target from what it follows
        for parameter in subject.target.parameters():
            parameter.mul_(1.5)
    actor, critic, log_temperature = slow_twin(subject, drawn)
    subject.learn(drawn, 1.0)
    for slow, fast in ((actor, subject.network.actor), (critic, subject.network.critic)):
        for expected, found in zip(slow.parameters(), fast.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)
    torch.testing.assert_close(subject.network.log_temperature, log_temperature)


def test_each_part_learns_from_its_own_loss_alone() -> None:
    """Gradients, part by part: those of the whole are those of each loss, because nothing leaks."""
    subject, drawn = updater(), sample()
    told = subject.learn(drawn, 1.0).metrics
    expected = updater()
    actor, critic, _ = slow_twin(expected, drawn)
    for slow, whole in ((actor, subject._parts[0]), (critic, subject._parts[1])):
        gradient = torch.cat([parameter.grad.reshape(-1) for parameter in slow.parameters()])
        assert whole.grad is not None
        torch.testing.assert_close(whole.grad, gradient, rtol=1e-3, atol=1e-5)
    assert told[keys.GRAD_NORM.name] > 0


def test_a_long_gradient_is_cut() -> None:
    subject = updater(max_grad_norm=1e-3)
    told = subject.learn(sample(), 1.0).metrics
    for whole in subject._parts:
        assert whole.grad is not None
        assert whole.grad.norm().item() == pytest.approx(1e-3, rel=1e-3)
    assert told[keys.GRAD_NORM.name] > 0.1


@pytest.mark.parametrize("wanted", [-2.0, 1.0])
def test_the_temperature_moves_the_entropy_to_what_is_wanted(wanted: float) -> None:
    subject = updater(
        target_entropy=wanted, temperature_rate=0.03, learning_rate=0.01, critic_rate=0.01, target_rate=0.05
    )
    # What is best does not depend on what is seen: the middle of the bounds.
    told = []
    for step in range(300):
        drawn = sample(step, discount=np.zeros(ROWS, np.float32))
        far = ((drawn.data.action - torch.tensor([0.0, 2.5])) / torch.tensor([2.0, 2.5])).square().sum(-1)
        told.append(subject.learn(drawn._replace(data=drawn.data._replace(reward=-far)), 1.0).metrics)  # type: ignore[attr-defined]
    found = np.mean([row[keys.ENTROPY.name] for row in told[-50:]])
    assert found == pytest.approx(wanted, abs=0.4)
    assert told[-1][keys.TEMPERATURE.name] != pytest.approx(1.0, rel=0.1)


def test_a_temperature_that_is_not_to_learn_stays() -> None:
    subject = updater(temperature=0.2, temperature_rate=0.0)
    for step in range(3):
        told = subject.learn(sample(step), 1.0).metrics
    assert told[keys.TEMPERATURE.name] == pytest.approx(0.2)


def test_the_entropy_is_told_in_units_that_do_not_depend_on_the_bounds() -> None:
    told = updater().learn(sample(), 1.0).metrics
    assert told[keys.ENTROPY.name] == pytest.approx(2 * np.log(2), abs=0.8)  # of eight draws, nearly uniform


@pytest.mark.parametrize(("terminated", "counts"), [(True, False), (False, True)])
def test_what_comes_after_is_counted_on_unless_the_episode_terminated(terminated: bool, counts: bool) -> None:
    subject = updater(learning_starts=1)
    at_end = np.zeros((T, N), bool)
    at_end[-1] = True
    last = np.full((N, 3), 0.5, np.float32)
    ends = {"terminated": at_end & terminated, "truncated": at_end & (not terminated)}
    where = (np.full(N, T - 1), np.arange(N))
    subject.insert(batch(final_obs=last, final_at=where, **ends))
    drawn = subject.memory.sample(100).data
    ended = (drawn.discount == 0.0) | (drawn.next_obs == 0.5).all(-1)
    assert ended.any()
    assert (drawn.discount[ended] == (np.float32(0.99) if counts else 0.0)).all()


def test_the_target_follows_the_q_functions_slowly() -> None:
    subject = updater(target_rate=0.25)
    before = [parameter.clone() for parameter in subject.target.parameters()]
    subject.update(batch(), 1.0, lambda: None)
    assert subject.updates == 1
    pairs = zip(before, subject.target.parameters(), subject.network.critic.parameters(), strict=True)
    for old, new, followed in pairs:
        torch.testing.assert_close(new, old + 0.25 * (followed - old))
        assert not torch.equal(followed, old)


def test_only_the_policy_travels() -> None:
    subject = updater()
    assert subject.acting is subject.network.actor
    assert not any("critic" in name or "temperature" in name for name in subject.weights())


def test_surprise_is_told_to_a_memory_that_asks() -> None:
    assert updater().learn(sample(), 1.0).priorities is None
    subject = updater(prioritized=True)
    surprise = subject.learn(sample(), 1.0).priorities
    assert surprise is not None
    assert surprise.shape == (ROWS,)
    assert (surprise > 0).all()
    for _ in range(3):
        subject.update(batch(), 1.0, lambda: None)


def test_observations_are_normalised_by_what_went_into_the_memory() -> None:
    subject = updater(normalize_observations=True)
    subject.insert(batch())
    assert subject.network.actor.normalizer is not None
    assert subject.network.actor.normalizer.count.item() == T * N
    assert any("normalizer" in name for name in subject.weights())


def test_learning_rates_fall_each_from_its_own() -> None:
    subject = updater(anneal=True, learning_rate=1e-3, critic_rate=2e-3, temperature_rate=4e-3)
    told = subject.learn(sample(), 0.5).metrics
    assert [group["lr"] for group in subject.optimizer.param_groups] == [0.5e-3, 1e-3, 2e-3]
    assert told[keys.LEARNING_RATE.name] == 0.5e-3


def test_what_is_saved_is_all_there_is_but_the_memory() -> None:
    one, other = updater(seed=1), updater(seed=5)
    one.learn(sample(1), 1.0)
    one.updates = 7
    other.restore(one.tensors())
    for subject in (one, other):
        subject.learn(sample(2), 1.0)
    assert other.updates == 7
    assert one.tensors().keys() == other.tensors().keys()
    for left, right in zip(one.tensors().values(), other.tensors().values(), strict=True):
        assert torch.equal(left, right)
