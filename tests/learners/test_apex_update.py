"""One update of Ape-X: what goes into the memory, with which priorities, and what a sample does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv.learners.apex.config import ApeXConfig
from clusterenv.learners.apex.update import ApeXUpdater
from clusterenv.learners.replay.updater import on_device
from clusterenv.metrics import keys
from tests.learners.replay.kit import batch_of

SPACES = spaces.Box(-10, 10, (3,)), spaces.Discrete(2)
T, N = 6, 2


def updater(**changes: Any) -> ApeXUpdater:
    settings: dict[str, Any] = {"n_step": 2, "gamma": 0.5, "num_envs": N, "rollout_steps": T, "sample_size": 4}
    return ApeXUpdater(ApeXConfig(**{**settings, **changes}), *SPACES)


def played(seed: int = 0, *, terminated: bool = False) -> Any:
    """Fragments in which the first slot's episode ends after step 3, by truncation or termination."""
    source = np.random.default_rng(seed)
    ends = np.zeros((T, N), bool)
    ends[3, 0] = True
    nothing = np.zeros_like(ends)
    first = np.zeros((T + 1, N), bool)
    first[0], first[4, 0] = True, True
    return batch_of(
        obs=source.normal(size=(T + 1, N, 3)).astype(np.float32),
        action=source.integers(2, size=(T, N)),
        reward=source.normal(size=(T, N)),
        terminated=ends if terminated else nothing,
        truncated=nothing if terminated else ends,
        first=first,
        final_obs=source.normal(size=(1, 3)).astype(np.float32),
        final_at=(np.array([3]), np.array([0])),
        params=source.normal(size=(T, N, 2)).astype(np.float32),
        slot=np.arange(N),
        worker_lost=np.zeros(N, bool),
    )


def told(subject: ApeXUpdater, monkeypatch: pytest.MonkeyPatch, batch: Any) -> tuple[Any, ...]:
    """What the memory gets with a batch."""
    given: list[tuple[Any, ...]] = []
    add = subject.memory.add

    def noted(*parts: Any) -> int:
        given.append(parts)
        return add(*parts)

    monkeypatch.setattr(subject.memory, "add", noted)
    subject.insert(batch)
    return given[0]


def test_first_priorities_come_from_what_the_workers_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, batch = updater(), played()
    _, taken, best, _ = told(subject, monkeypatch, batch)
    for t in range(T):
        for n in range(N):
            assert taken[t, n] == batch.params[t, n, batch.action[t, n]]
            assert best[t, n] == max(batch.params[t, n])


def test_the_network_says_what_the_last_observation_of_an_episode_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    subject, batch = updater(), played()
    *_, final_best = told(subject, monkeypatch, batch)
    q = subject.network(torch.from_numpy(batch.final_obs))[0]
    np.testing.assert_allclose(final_best, q.max(-1).values.detach().numpy(), rtol=1e-6)


def test_a_transition_that_surprised_the_worker_is_drawn_more_often() -> None:
    subject, batch = updater(priority_exponent=1.0), played()
    batch.reward[:] = 0.0
    batch.params[:] = 0.0
    batch.reward[1, 1] = 100.0  # in two transitions of two steps
    with torch.no_grad():
        for parameter in subject.network.parameters():
            parameter.zero_()
    assert subject.insert(batch) == 8
    sample = subject.memory.sample(200)
    assert set(sample.ids.tolist()) == {1, 3}  # steps 0 and 1 of slot 1, of two slots


def test_a_memory_that_samples_evenly_needs_no_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = updater(prioritized=False)
    assert len(told(subject, monkeypatch, played())) == 1
    sample = on_device(subject.memory.sample(4), "cpu")
    assert subject.learn(sample, 1.0).priorities is None


def error_by_hand(subject: ApeXUpdater, batch: Any, t: int, n: int) -> float:
    """The error of the transition from this step, by the networks as they are."""

    def q(network: Any, obs: Any) -> Any:
        return network(torch.from_numpy(obs)[None])[0][0].detach().numpy()

    gamma, total, k = 0.5, 0.0, 0
    while k < 2:
        total += gamma**k * batch.reward[t + k, n]
        k += 1
        if batch.terminated[t + k - 1, n] or batch.truncated[t + k - 1, n]:
            break
    ended = batch.truncated[t + k - 1, n] or batch.terminated[t + k - 1, n]
    following = batch.final_obs[0] if ended else batch.obs[t + k, n]
    chosen = q(subject.network, following).argmax()
    worth = 0.0 if batch.terminated[t + k - 1, n] else gamma**k * q(subject.target, following)[chosen]
    return float(total + worth - q(subject.network, batch.obs[t, n])[batch.action[t, n]])


@pytest.mark.parametrize("terminated", [False, True])
def test_the_errors_of_a_sample_are_those_of_the_book(terminated: bool) -> None:
    subject, batch = updater(), played(terminated=terminated)
    with torch.no_grad():  # so that who chooses and who values differ
        for parameter in subject.target.parameters():
            parameter.add_(torch.randn_like(parameter))
    subject.insert(batch)
    sample = subject.memory.sample(60)
    expected = {}
    for number in set(sample.ids.tolist()):
        t, n = divmod(number, N)
        expected[number] = abs(error_by_hand(subject, batch, t, n))
    learned = subject.learn(on_device(sample, "cpu"), 1.0)
    assert learned.priorities is not None
    assert len(expected) > 5
    np.testing.assert_allclose(learned.priorities, [expected[number] for number in sample.ids.tolist()], rtol=1e-4)
    assert learned.metrics[keys.TD_ERROR.name] == pytest.approx(np.mean(learned.priorities), rel=1e-4)


def test_the_target_network_has_no_gradient_and_a_long_gradient_is_cut() -> None:
    subject, batch = updater(max_grad_norm=0.01, learning_rate=1e-8), played()
    batch.reward *= 1000
    subject.insert(batch)
    before = [parameter.clone() for parameter in subject.target.parameters()]
    learned = subject.learn(on_device(subject.memory.sample(8), "cpu"), 1.0)
    assert learned.metrics[keys.GRAD_NORM.name] > 1
    grads = [parameter.grad for parameter in subject.network.parameters() if parameter.grad is not None]
    assert torch.stack([grad.norm() for grad in grads]).norm() == pytest.approx(0.01, rel=1e-3)
    for old, now in zip(before, subject.target.parameters(), strict=True):
        assert torch.equal(old, now)
        assert now.grad is None


def test_the_published_optimiser_is_centred_and_has_the_published_numbers() -> None:
    (group,) = updater(optimizer="rmsprop", learning_rate=6.25e-5).optimizer.param_groups
    told = {name: group[name] for name in ("lr", "alpha", "eps", "momentum", "centered")}
    assert told == {"lr": 6.25e-5, "alpha": 0.95, "eps": 1.5e-7, "momentum": 0, "centered": True}


def test_observations_are_brought_to_the_scale_of_what_came_in() -> None:
    subject, batch = updater(normalize_observations=True), played()
    subject.insert(batch)
    normalizer: Any = subject.network.body.normalizer
    np.testing.assert_allclose(normalizer.mean, batch.obs[:-1].reshape(-1, 3).mean(0), atol=1e-6)


def test_what_is_saved_is_all_there_is_but_the_memory() -> None:
    one, other = (updater(seed=seed, learning_starts=4, samples_per_insert=10.0) for seed in (1, 5))
    one.update(played(), 1.0, lambda: None)
    other.restore(one.tensors())
    assert other.updates == one.updates == 1
    sample = on_device(one.memory.sample(4), "cpu")
    for subject in (one, other):
        subject.learn(sample, 0.5)
    for left, right in zip(one.tensors().values(), other.tensors().values(), strict=True):
        assert torch.equal(left, right)


def test_stacks_of_frames_are_kept_once_if_asked() -> None:
    space = spaces.Box(0, 255, (4, 24, 24), np.uint8)
    settings: dict[str, Any] = {"num_envs": N, "rollout_steps": T, "body": "shallow", "capacity": 1000}
    whole, once = (
        ApeXUpdater(ApeXConfig(**settings, stacked=stacked), space, spaces.Discrete(3)).memory.nbytes
        for stacked in (False, True)
    )
    assert once < whole / 3
