"""One update of R2D2: sequences are seen as the policy saw them, and what that does to the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import clusterenv
from clusterenv.learners.r2d2.config import R2D2Config
from clusterenv.learners.r2d2.update import R2D2Updater, unroll
from clusterenv.learners.replay.updater import on_device
from clusterenv.metrics import keys
from tests.learners import envs as _envs  # noqa: F401  # registers the environments

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS = 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As learners compute, unless they are told otherwise: steps of a small memory are not worth more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def updater(envs: Any, **changes: Any) -> R2D2Updater:
    fixed: dict[str, Any] = {
        "num_envs": SLOTS,
        "length": 6,
        "burn_in": 3,
        "overlap": 2,
        "rollout_steps": 7,
        "lstm": 8,
        "hidden": (8,),
        "n_step": 2,
        "sample_size": 64,
        "seed": 3,
        "capacity": 2000,
    }
    config = R2D2Config(**{**fixed, **changes})
    return R2D2Updater(config, envs.single_observation_space, envs.single_action_space)


class Played:
    """Some fragments of a real environment in the memory, and the Q-values that the policy acted on."""

    def __init__(self, env_id: str = "test/Screen-v0", **changes: Any) -> None:
        with clusterenv.make_vec(env_id, num_envs=SLOTS, cluster="inproc") as envs:
            envs.reset(seed=1)
            self.updater = updater(envs, **changes)
            every_state = self.updater.every_state
            # As they are: rounded weights would act a little differently.
            envs.attach(self.updater.acting, seed=1, encoding="fp32", runtime="torch", every_state=every_state)
            batches = [envs.rollout(7) for _ in range(6)]
        self.inserted = sum(self.updater.insert(batch) for batch in batches)
        self.params = np.concatenate([batch.params for batch in batches])  # [steps, slots, A]

    def sample(self, count: int = 64) -> Any:
        return on_device(self.updater.memory.sample(count), "cpu")

    def thought(self, ids: Any) -> tuple[Any, Any]:
        """Q-values of the steps to learn from [m, B, A] as the policy had them; whether there are such steps."""
        start, slot = np.divmod(ids, SLOTS)
        k = start + np.arange(self.updater.config.length)[:, None]
        there = k < len(self.params)
        return torch.from_numpy(self.params[np.where(there, k, 0), slot]), torch.from_numpy(there)


def everything_but_pictures(**changes: Any) -> Played:
    return Played("CartPole-v1", **changes)


@pytest.mark.parametrize("burn_in", [0, 3, 9])
@pytest.mark.parametrize("env_id", ["test/Screen-v0", "CartPole-v1"])
def test_a_sequence_is_seen_as_the_policy_saw_it(env_id: str, burn_in: int) -> None:
    """The state that was stored belongs to the first step of burn-in, and the steps in between bring it up to date."""
    body = "shallow" if env_id.startswith("test/") else "mlp"
    played = Played(env_id, burn_in=burn_in, body=body)
    sample = played.sample(128)
    assert len(set(sample.ids.tolist())) > 10
    assert set(sample.data.burn_in.tolist()) == {0} or burn_in, "episodes' beginnings and middles"
    q, mask = unroll(played.updater.network, sample.data, burn_in), sample.data.mask[burn_in:]
    expected, there = played.thought(sample.ids)
    assert (there | ~mask).all()
    torch.testing.assert_close(q[:-1][mask], expected[mask], rtol=1e-4, atol=1e-5)


def test_without_the_stored_state_the_middle_of_an_episode_is_not_what_it_was() -> None:
    played = everything_but_pictures(stored_state=False)
    assert not played.updater.every_state
    sample = played.sample(128)
    q, mask = unroll(played.updater.network, sample.data, 3), sample.data.mask[3:]
    expected, _ = played.thought(sample.ids)
    wrong = ((q[:-1] - expected).abs().amax(-1) > 1e-4) & mask
    begins = sample.data.first[: 3 + 1].any(0)  # in the burn-in, or right after it
    assert not wrong[:, begins].any()
    assert wrong[0, ~begins].any()


def test_a_network_without_memory_needs_no_state() -> None:
    played = everything_but_pictures(lstm=0)
    assert not played.updater.every_state
    sample = played.sample()
    assert sample.data.state == ()
    q, mask = unroll(played.updater.network, sample.data, 3), sample.data.mask[3:]
    torch.testing.assert_close(q[:-1][mask], played.thought(sample.ids)[0][mask], rtol=1e-4, atol=1e-5)
    assert played.updater.learn(sample, 1.0).metrics[keys.TD_LOSS.name] > 0


def test_no_gradient_goes_into_the_burn_in() -> None:
    played = everything_but_pictures()
    sample = played.sample()
    obs = sample.data.obs.requires_grad_()
    state = tuple(part.requires_grad_() for part in sample.data.state)
    total = unroll(played.updater.network, sample.data._replace(obs=obs, state=state), 3).sum()
    total.backward()  # type: ignore[no-untyped-call]
    assert obs.grad is not None
    assert not obs.grad[:3].any()
    assert obs.grad[3:].any()
    assert all(part.grad is None for part in state)


def test_both_networks_start_from_the_stored_state_with_a_burn_in_of_their_own() -> None:
    """Where the two networks are equal, so are their Q-values: the target is no other memory of the same steps."""
    played = everything_but_pictures()
    data = played.sample().data
    one, other = (unroll(net, data, 3).detach() for net in (played.updater.network, played.updater.target))
    torch.testing.assert_close(one, other)
    with torch.no_grad():
        for parameter in played.updater.target.core.parameters():
            parameter.mul_(0.5)
    assert (unroll(played.updater.target, data, 3) - one).abs().max() > 1e-4
    forgotten = data._replace(state=tuple(torch.zeros_like(part) for part in data.state))
    for network in (played.updater.network, played.updater.target):
        with torch.no_grad():
            apart = (unroll(network, data, 3) - unroll(network, forgotten, 3)).abs()
        assert apart.max() > 1e-5, "the stored state plays a part"


def test_a_long_gradient_is_cut_and_the_optimiser_is_as_asked() -> None:
    played = everything_but_pictures(max_grad_norm=1e-3, learning_rate=1e-8, adam_epsilon=0.25)
    learned = played.updater.learn(played.sample(), 1.0)
    assert learned.metrics[keys.GRAD_NORM.name] > 0.01
    grads = [parameter.grad for parameter in played.updater.network.parameters() if parameter.grad is not None]
    assert torch.stack([grad.norm() for grad in grads]).norm() == pytest.approx(1e-3, rel=1e-3)
    assert [group["eps"] for group in played.updater.optimizer.param_groups] == [0.25]


def test_learning_brings_predictions_nearer_to_their_targets() -> None:
    played = everything_but_pictures(learning_rate=1e-2)
    sample = played.sample()
    told = [played.updater.learn(sample, 1.0) for _ in range(40)]
    losses = [each.metrics[keys.TD_LOSS.name] for each in told]
    assert losses[-1] < 0.5 * losses[0]
    assert told[0].priorities is not None
    assert told[-1].priorities is not None
    assert told[-1].priorities.mean() < told[0].priorities.mean()
    assert set(told[0].metrics) == {
        metric.name for metric in (keys.LEARNING_RATE, keys.TD_LOSS, keys.TD_ERROR, keys.Q_MEAN, keys.GRAD_NORM)
    }


def test_the_weights_of_a_sample_weigh_its_sequences() -> None:
    played = everything_but_pictures()
    sample = played.sample()

    def gradients(weights: Any) -> list[Any]:
        fresh = everything_but_pictures(learning_rate=1e-9).updater
        fresh.learn(sample._replace(weights=weights), 1.0)
        return [parameter.grad for parameter in fresh.network.parameters()]

    whole, half = gradients(torch.ones(64)), gradients(torch.full((64,), 0.5))
    for one, other in zip(whole, half, strict=True):
        torch.testing.assert_close(other, 0.5 * one)


def test_the_target_network_judges() -> None:
    """With other weights in the target network the errors are others; without a discount it plays no part."""
    for gamma, matters in ((0.9, True), (0.0, False)):
        played = everything_but_pictures(gamma=gamma, learning_rate=1e-9)
        sample = played.sample()
        before = played.updater.learn(sample, 1.0).priorities
        with torch.no_grad():
            for parameter in played.updater.target.parameters():
                parameter.mul_(3.0)
        after = played.updater.learn(sample, 1.0).priorities
        assert before is not None
        assert after is not None
        assert (np.abs(before - after).max() > 1e-3) == matters


def test_first_priorities_are_those_of_the_policy_that_acted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the target network too; so long as nothing was learned, the learner finds the same errors."""
    told: dict[int, float] = {}
    update = R2D2Updater.insert

    def noted(self: R2D2Updater, batch: Any) -> int:
        keep = self.memory.update

        def listen(ids: Any, priorities: Any) -> None:
            told.update(zip(ids.tolist(), priorities.tolist(), strict=True))
            keep(ids, priorities)

        monkeypatch.setattr(self.memory, "update", listen)
        count = update(self, batch)
        monkeypatch.setattr(self.memory, "update", keep)
        return count

    monkeypatch.setattr(R2D2Updater, "insert", noted)
    played = everything_but_pictures(length=3, overlap=0, burn_in=6, n_step=1)
    assert len(told) > 0.8 * played.inserted
    sample = played.sample(200)
    found = played.updater.learn(sample, 1.0).priorities
    assert found is not None
    # Whose episode terminated within them: there nothing was missing when they were inserted.
    whole = sample.data.terminated.any(0).numpy()
    assert whole.sum() > 5
    for number, surprise, known in zip(sample.ids.tolist(), found.tolist(), whole, strict=True):
        if known:
            assert told[number] == pytest.approx(surprise, rel=1e-3, abs=1e-4)


def test_without_priorities_nothing_is_told_to_the_memory() -> None:
    played = everything_but_pictures(prioritized=False)
    sample = played.sample()
    assert (sample.weights == 1.0).all()
    assert played.updater.learn(sample, 1.0).priorities is None


def test_observations_are_scaled_by_what_was_played() -> None:
    played = everything_but_pictures(normalize_observations=True)
    normalizer: Any = played.updater.network.body.normalizer
    assert float(normalizer.count) == pytest.approx(6 * 7 * SLOTS, rel=0.01)
    assert played.updater.learn(played.sample(), 1.0).metrics[keys.TD_LOSS.name] > 0
