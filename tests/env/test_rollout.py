"""Lock step with a policy on the workers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ResetNeeded
from gymnasium.vector import AutoresetMode

import clusterenv
from clusterenv import ConfigError, PolicyError
from clusterenv.errors import WeightsError
from clusterenv.policy.adapters import as_policy
from clusterenv.policy.distributions import Categorical
from tests.env.kit import SpaceEnv
from tests.env.policies import CHOICES, Echo, Failing, Gaussian, Linear, Memory, WideEnv, wide
from tests.policy.agents import Continuous
from tests.zoo import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import Batch, ClusterEnv

    Make = Callable[..., ClusterEnv]


def attached(make: Make, count: int = 4, length: int = 10, policy: Any = None, **kwargs: Any) -> ClusterEnv:
    """A batch that was reset, with a policy."""
    envs = make(wide(count, length))
    envs.reset(seed=1)
    kwargs.setdefault("sync", "on-change")
    envs.attach(policy or Linear(), seed=5, **kwargs)
    return envs


def same(left: Batch, right: Batch) -> None:
    """All arrays are equal, bit for bit."""
    for name in ("obs", "action", "reward", "terminated", "truncated", "first", "logp", "params", "value", "version"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)
    np.testing.assert_array_equal(left.final_obs, right.final_obs)
    np.testing.assert_array_equal(left.episodes.returns, right.episodes.returns)


# What a batch holds.


def test_every_slot_plays_every_step(make: Make) -> None:
    batch = attached(make, count=3, length=4).rollout(6)
    assert (batch.T, batch.N, batch.steps) == (6, 3, 18)
    np.testing.assert_array_equal(batch.slot, [0, 1, 2])
    np.testing.assert_array_equal(batch.obs[:, :, 0], np.tile([0, 1, 2], (7, 1)))
    # The row after the end of an episode is the first of the next.
    np.testing.assert_array_equal(batch.obs[:, 0, 1], [0, 1, 2, 3, 0, 1, 2])
    np.testing.assert_array_equal(batch.first[:, 0], [True, False, False, False, True, False, False])
    np.testing.assert_array_equal(batch.terminated[:, 0], [False, False, False, True, False, False])
    assert not batch.truncated.any()
    np.testing.assert_array_equal(batch.reward, batch.action)


def test_the_last_observation_of_an_episode_is_kept(make: Make) -> None:
    batch = attached(make, count=3, length=4).rollout(6)
    times, rows = batch.final_at
    np.testing.assert_array_equal(times, [3, 3, 3])
    assert sorted(rows.tolist()) == [0, 1, 2]
    np.testing.assert_array_equal(batch.final_obs[:, 0], rows)
    np.testing.assert_array_equal(batch.final_obs[:, 1], [4, 4, 4])


def test_episodes_are_counted_across_fragments(make: Make) -> None:
    envs = attached(make, count=2, length=4)
    first, second = envs.rollout(3), envs.rollout(3)
    assert len(first.episodes.returns) == 0
    np.testing.assert_array_equal(second.episodes.lengths, [4, 4])
    rewards = np.concatenate([first.reward, second.reward])[:4].sum(axis=0)
    np.testing.assert_array_equal(second.episodes.returns, rewards[second.episodes.slots])


def test_two_short_rollouts_are_one_long_one(make: Make) -> None:
    long = attached(make).rollout(12)
    envs = attached(make)
    parts = [envs.rollout(7), envs.rollout(5)]
    for name in ("action", "reward", "logp", "params", "terminated"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(long, name))
    np.testing.assert_array_equal(parts[0].obs[-1], parts[1].obs[0])


def test_log_probabilities_are_those_of_the_decoded_weights(make: Make) -> None:
    policy = Linear()
    envs = attached(make, policy=policy, encoding="bf16")
    made = as_policy(policy, envs.single_observation_space, envs.single_action_space)
    by_version = {}
    for _ in range(3):
        batch = envs.rollout(8)
        held = envs._detached._copies[0].held  # type: ignore[union-attr]
        by_version[held.version.number] = envs._detached._spec.unflatten(held.flat)  # type: ignore[union-attr]
        for number in np.unique(batch.version):
            runtime = made.build().make()
            runtime.load(by_version[int(number)])
            rows = batch.version == number
            output = runtime([batch.obs[:-1][rows]], ())
            logp = made.distribution.log_prob(output.params, batch.action[rows])
            np.testing.assert_allclose(logp, batch.logp[rows], atol=1e-5)
            assert output.value is not None
            np.testing.assert_allclose(output.value, batch.value[rows], atol=1e-5)
        policy.nudge()
        envs.publish(policy)
    assert len(by_version) == 3


def test_the_batch_as_tensors(make_here: Make) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    batch = attached(make_here).rollout(5)
    tensors = batch.to(torch)
    assert tensors.obs.shape == (6, 4, 2)
    assert tensors.reward.dtype == torch.float32
    assert tensors.action.dtype == torch.int64
    assert tensors.terminated.dtype == torch.bool
    assert (tensors.T, tensors.N) == (5, 4)
    np.testing.assert_array_equal(tensors.logp.numpy(), batch.logp)
    assert isinstance(tensors.final_at, tuple)


def test_views_are_overwritten_and_copies_are_not(make: Make) -> None:
    envs = make(wide(2, 10**6), copy=False)
    envs.reset(seed=1)
    envs.attach(Linear(), seed=5, sync="never")
    before = envs.rollout(4)
    kept = before.obs.copy()
    envs.rollout(4)
    assert (before.obs[:, :, 1] == kept[:, :, 1] + 4).all(), "a view shows the next rollout"
    envs = attached(make, count=2, length=10**6)
    before = envs.rollout(4)
    kept = before.obs.copy()
    envs.rollout(4)
    np.testing.assert_array_equal(before.obs, kept)


# The same data, whoever plays.


def test_the_number_of_workers_changes_nothing() -> None:
    batches: list[list[Batch]] = []
    for cluster in ("inproc:1", "inproc:2", "local:1", "local:2", "local:3"):
        with clusterenv.make_vec("CartPole-v1", num_envs=6, cluster=cluster) as envs:
            envs.reset(seed=3)
            policy = Linear(4, 2)
            envs.attach(policy, seed=9, sync="every:2")
            batches.append([])
            for _ in range(3):
                batches[-1].append(envs.rollout(30))
                policy.nudge()
                envs.publish(policy)
    for other in batches[1:]:
        for left, right in zip(batches[0], other, strict=True):
            for name in ("obs", "action", "reward", "logp", "version", "first"):
                np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def continuous(cluster: str) -> list[Batch]:
    """What a continuous policy plays there, in three rollouts."""
    torch.manual_seed(0)
    agent = Continuous(inputs=3, actions=1)
    with clusterenv.make_vec("Pendulum-v1", num_envs=6, cluster=cluster) as envs:
        envs.reset(seed=3)
        envs.attach(agent, seed=9)
        return [envs.rollout(20) for _ in range(3)]


def test_blocks_of_the_same_sizes_give_the_same_continuous_actions() -> None:
    for left, right in zip(continuous("inproc:2"), continuous("local:2"), strict=True):
        same(left, right)


def test_blocks_of_other_sizes_change_no_more_than_rounding_does() -> None:
    whole, single = continuous("inproc:1")[0], continuous("inproc:6")[0]
    # From the same observations, with the same random numbers. Later ones follow from these, and drift.
    np.testing.assert_array_equal(whole.obs[0], single.obs[0])
    for name in ("action", "logp", "params"):
        left, right = getattr(whole, name)[0], getattr(single, name)[0]
        np.testing.assert_allclose(left, right, rtol=0, atol=1e-5, err_msg=name)


def test_neighbours_do_not_change_the_actions_of_a_slot(make: Make) -> None:
    few, many = attached(make, count=2).rollout(12), attached(make, count=5).rollout(12)
    np.testing.assert_array_equal(few.action, many.action[:, :2])
    assert len(np.unique(many.action[:, 0])) > 3, "the policy explores"


def test_seeds(make_here: Make) -> None:
    def play(seed: int | None) -> Any:
        envs = make_here(wide(2))
        envs.reset(seed=1)
        envs.attach(Linear(), seed=seed)
        return envs.rollout(20).action

    np.testing.assert_array_equal(play(1), play(1))
    assert (play(1) != play(2)).any()
    assert (play(None) != play(None)).any()


def test_deterministic_actions(make: Make) -> None:
    batch = attached(make, deterministic=True).rollout(6)
    np.testing.assert_array_equal(batch.action, batch.params.argmax(-1))


# Kinds of spaces and policies.


def test_a_recurrent_policy_starts_each_episode_from_zero(make: Make) -> None:
    envs = make(wide(3, 4))
    envs.reset(seed=1)
    envs.attach(Memory(), sync="never")
    first, second = envs.rollout(6), envs.rollout(6)
    np.testing.assert_array_equal(first.action[:, 0], [1, 2, 3, 4, 1, 2])
    np.testing.assert_array_equal(first.state[0], np.zeros((3, 1)))
    np.testing.assert_array_equal(second.state[0], np.full((3, 1), 2.0))
    np.testing.assert_array_equal(second.action[:, 0], [3, 4, 1, 2, 3, 4])


def test_the_state_before_every_step_is_told_to_who_asks(make: Make) -> None:
    envs = make(wide(3, 4))
    envs.reset(seed=1)
    envs.attach(Memory(), sync="never", every_state=True)
    first, second = envs.rollout(6), envs.rollout(6)
    assert first.states is not None
    assert second.states is not None
    np.testing.assert_array_equal(first.states[0][:, :, 0].T, [[0, 1, 2, 3, 0, 1]] * 3)
    np.testing.assert_array_equal(second.states[0][:, :, 0].T, [[2, 3, 0, 1, 2, 3]] * 3)
    envs.attach(Linear(), sync="never", every_state=True)
    assert envs.rollout(2).states == ()
    envs.attach(Memory(), sync="never")
    assert envs.rollout(2).states is None


def test_continuous_actions_are_clipped_for_the_environment_only(make: Make) -> None:
    space = spaces.Box(-1.0, 1.0, (2, 2), np.float32)
    envs = make([lambda: SpaceEnv(spaces.Box(-1, 1, (3,), np.float32), space)] * 2)
    envs.reset(seed=1)
    envs.attach(Gaussian((2, 2)), seed=1)
    batch = envs.rollout(30)
    assert batch.action.shape == (30, 2, 2, 2)
    assert np.abs(batch.action).max() > 1.0, "the learner sees what was sampled"


def test_choices_count_from_zero_and_the_environment_gets_them_from_its_start(make: Make) -> None:
    def factory() -> Any:
        env = CountingEnv()
        env.action_space = spaces.Discrete(3, start=5)
        return env

    policy = Linear(choices=3)
    policy.distribution = Categorical(3, start=5)
    envs = make([factory] * 2)
    envs.reset(seed=1)
    envs.attach(policy, seed=1)
    batch = envs.rollout(30)
    assert set(batch.action.flat) == {0, 1, 2}, "an index into the logits"
    np.testing.assert_array_equal(batch.reward, batch.action + 5)
    np.testing.assert_array_equal(policy.distribution.to_env(batch.action), batch.reward)


def test_observations_of_several_parts(make: Make) -> None:
    observation = spaces.Dict(a=spaces.Box(-1, 1, (3,), np.float32), b=spaces.Discrete(5))

    class Parts(Linear):
        def forward(self, weights: Any, obs: Any, state: Any) -> Any:
            flat = np.concatenate([obs["a"], obs["b"][:, None]], axis=1)
            return super().forward(weights, flat, state)

    envs = make([lambda: SpaceEnv(observation, spaces.Discrete(4))] * 3)
    envs.reset(seed=1)
    envs.attach(Parts(4, 4), seed=1)
    batch = envs.rollout(7)
    assert batch.obs["a"].shape == (8, 3, 3)
    assert batch.obs["b"].shape == (8, 3)
    assert set(batch.final_obs) == {"a", "b"}


def test_a_torch_agent_of_cleanrl(make: Make) -> None:
    pytest.importorskip("torch", reason="needs torch")
    from tests.policy.agents import CleanRL

    envs = make([lambda: gymnasium.make("CartPole-v1")] * 4)
    envs.reset(seed=1)
    agent = CleanRL(4, 2)
    envs.attach(agent, seed=1)
    batch = envs.rollout(16)
    assert batch.params.shape == (16, 4, 2)
    assert batch.value.shape == (16, 4)
    assert envs.publish(agent) == (0, 0), "its weights have not changed"


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
def test_a_copy_of_a_torch_agent_can_be_published(make_here: Make, runtime: str) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    from tests.policy.agents import CleanRL

    envs = make_here([lambda: gymnasium.make("CartPole-v1")] * 2)
    envs.reset(seed=1)
    agent = CleanRL(4, 2)  # it has a layer that acting does not need
    envs.attach(agent, runtime=runtime, sync="on-change", encoding="fp32", seed=1)
    average = copy.deepcopy(agent)
    with torch.no_grad():
        average.actor[2].bias += torch.tensor([3.0, 0.0])
    assert envs.publish(average) == (0, 1)
    batch = envs.rollout(4)
    assert (batch.version == 1).all()
    expected = average.actor(torch.from_numpy(batch.obs[:-1])).log_softmax(-1).detach()
    found = torch.from_numpy(batch.params).log_softmax(-1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    average.another = torch.nn.Linear(1, 1)
    with pytest.raises(WeightsError, match=r"'another\.weight' was not there when the policy was attached"):
        envs.publish(average)


# Versions and bytes.


def test_every_label_is_true(make: Make) -> None:
    policy = Echo()
    envs = attached(make, policy=policy, encoding="fp32", sync="every:2")
    labels = []
    for number in range(1, 9):
        batch = envs.rollout(3)
        np.testing.assert_array_equal(batch.action, batch.version)
        assert (batch.lag == number - 1 - batch.version).all()
        labels.append(int(batch.version[0, 0]))
        policy.number = number
        assert envs.publish(policy) == (0, number)
    assert labels == [0, 0, 2, 2, 4, 4, 6, 6]


@pytest.mark.parametrize("sync", ["aps:0.0", "aps:0.05", "aps:1000", "on-change", "every:1", "never"])
def test_frozen_weights_move_once(make_local: Make, sync: str) -> None:
    policy = Linear(scale=20.0)  # peaked
    envs = attached(make_local, count=4, policy=policy, sync=sync)
    for _ in range(10):
        envs.rollout(100)
    stats = envs.stats()
    assert stats["steps"] == 4000
    assert stats["syncs"] == 1
    assert stats["sync_reasons"] == {"first": 1}


def test_weights_that_have_not_changed_are_no_new_version(make: Make) -> None:
    policy = Echo()
    envs = attached(make, policy=policy, encoding="fp32", sync="on-change")
    for number in (0, 0, 1, 1, 1, 2):
        policy.number = number
        assert envs.publish(policy) == (0, number)
        batch = envs.rollout(2)
        assert (batch.action == number).all()
        assert (batch.version == number).all()
        assert (batch.lag == 0).all()
    stats = envs.stats()
    assert (stats["publishes"], stats["sync_reasons"]) == (2, {"first": 1, "change": 2})


def test_always_moves_weights_that_have_not_changed(make_here: Make) -> None:
    envs = attached(make_here, policy=Echo(), sync="always")
    for _ in range(3):
        envs.rollout(2)
        assert envs.publish() == (0, 0)
    assert envs.stats()["sync_reasons"] == {"first": 1, "always": 3}


@pytest.mark.parametrize(("encoding", "size"), [("fp32", 4), ("bf16", 2)])
def test_bytes_are_syncs_times_the_encoded_size(make_here: Make, encoding: str, size: int) -> None:
    policy = Linear()
    envs = attached(make_here, policy=policy, encoding=encoding, sync="always")
    for _ in range(5):
        envs.rollout(2)
        policy.nudge()
        envs.publish(policy)
    stats = envs.stats()
    assert stats["syncs"] == 6
    assert stats["weight_bytes"] == {encoding: 6 * size * (2 * CHOICES + 2), "total": 6 * size * (2 * CHOICES + 2)}
    assert stats["publishes"] == 5


def test_a_difference_takes_fewer_bytes(make_here: Make) -> None:
    policy = Linear()
    envs = attached(make_here, policy=policy)
    key = envs.stats()["weight_bytes"]["total"]
    policy.nudge(1e-3)
    envs.publish(policy)
    assert envs.stats()["weight_bytes"]["bf16-delta"] < key


def test_a_forced_sync(make: Make) -> None:
    policy = Echo()
    envs = attached(make, policy=policy, encoding="fp32", sync="never")
    policy.number = 1
    envs.publish()
    assert (envs.rollout(2).action == 0).all()
    envs.sync()
    assert (envs.rollout(2).action == 1).all()
    assert envs.stats()["sync_reasons"] == {"first": 1, "forced": 1}


def test_another_object_of_the_same_kind_can_be_published(make: Make) -> None:
    envs = attached(make, policy=Echo(), encoding="fp32")
    other = Echo()
    other.number = 7
    envs.publish(other)
    assert (envs.rollout(2).action == 7).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(make: Make, bad: float) -> None:
    policy = Linear()
    envs = attached(make, policy=policy)
    version = envs.publish(policy)
    policy.slope = policy.slope + np.float32(bad)
    with pytest.raises(WeightsError, match="'slope' has 2 of 2 values that are not finite"):
        envs.publish(policy)
    assert (envs.rollout(2).version == version.number).all(), "the last good version acts on"


def test_weights_of_another_shape_are_refused(make: Make) -> None:
    policy = Linear()
    envs = attached(make, policy=policy)
    policy.matrix = np.zeros((3, CHOICES), np.float32)
    with pytest.raises(WeightsError, match=r"'matrix' has shape \(3, 64\), and had \(2, 64\)"):
        envs.publish(policy)


# Together with the other calls.


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rollouts_and_steps_follow_each_other(make: Make, mode: AutoresetMode) -> None:
    envs = make(wide(2, 4), autoreset_mode=mode)
    envs.reset(seed=1)
    envs.attach(Linear(), seed=1)
    batch = envs.rollout(3)
    assert batch.obs[-1][:, 1].tolist() == [3, 3]
    observations, _, terminated, _, _ = envs.step([1, 1])
    assert terminated.all()
    assert observations[:, 1].tolist() == ([0, 0] if mode is AutoresetMode.SAME_STEP else [4, 4])
    # Whatever the mode, the policy finds itself at the beginning of an episode.
    batch = envs.rollout(2)
    assert batch.obs[:, 0, 1].tolist() == [0, 1, 2]
    assert batch.first[0].all()
    assert envs.step([1, 1])[0][:, 1].tolist() == [3, 3]


def test_after_the_end_of_an_episode_in_a_rollout_the_next_step_is_a_step(make: Make) -> None:
    for mode in AutoresetMode:
        envs = make(wide(2, 4), autoreset_mode=mode)
        envs.reset(seed=1)
        envs.attach(Linear(), seed=1)
        assert envs.rollout(4).terminated[-1].all()
        assert envs.step([1, 1])[0][:, 1].tolist() == [1, 1]
        envs.close()


def test_an_episode_begun_by_steps_has_no_known_return(make: Make) -> None:
    envs = attached(make, count=2, length=4)
    envs.step([1, 1])
    batch = envs.rollout(7)
    np.testing.assert_array_equal(batch.episodes.lengths, [4, 4])
    assert batch.terminated.sum() == 4


def test_a_reset_starts_anew(make: Make) -> None:
    envs = attached(make, count=2, length=10**6)
    envs.rollout(5)
    envs.reset(seed=3)
    batch = envs.rollout(2)
    assert batch.obs[:, 0, 1].tolist() == [0, 1, 2]
    assert batch.first[0].all()


def test_another_policy_can_take_the_place_of_the_first(make: Make) -> None:
    envs = attached(make, policy=Echo(), encoding="fp32")
    envs.rollout(2)
    envs.attach(Linear(), seed=1)
    assert envs.rollout(2).params.shape == (2, 4, CHOICES)
    assert envs.stats()["steps"] == 8
    envs.detach()
    with pytest.raises(ConfigError, match=r"attach\(policy\)"):
        envs.rollout(2)
    envs.step([1] * 4)


def test_the_length_may_change(make: Make) -> None:
    envs = attached(make)
    assert [envs.rollout(steps).T for steps in (3, 8, 1, 8)] == [3, 8, 1, 8]


# Wrong calls.


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, None, "8"])
def test_steps_must_be_a_positive_number(make_here: Make, steps: Any) -> None:
    envs = attached(make_here)
    with pytest.raises(ConfigError, match="steps="):
        envs.rollout(steps)
    assert envs.rollout(1).T == 1


def test_a_policy_must_be_attached_and_the_batch_reset(make_here: Make) -> None:
    envs = make_here(wide(2))
    for call in (lambda: envs.rollout(1), envs.publish, envs.stats, envs.sync, lambda: envs.stream(1)):
        with pytest.raises(ConfigError, match="no policy is attached"):
            call()
    envs.attach(Linear())
    with pytest.raises(ResetNeeded):
        envs.rollout(1)


def test_no_rollout_while_a_step_is_under_way(make: Make) -> None:
    envs = attached(make, count=2)
    envs.step_async([1, 1])
    with pytest.raises(AlreadyPendingCallError, match="rollout"):
        envs.rollout(1)
    envs.step_wait()
    envs.send([1, 1])
    with pytest.raises(AlreadyPendingCallError, match="send"):
        envs.rollout(1)
    envs.recv(min_slots=2)
    envs.rollout(1)


def test_a_policy_that_does_not_fit_is_refused_at_once(make_here: Make) -> None:
    envs = make_here([CountingEnv] * 2)
    with pytest.raises(ConfigError, match=r"Discrete\(3\)"):
        envs.attach(Linear())
    with pytest.raises(ConfigError, match="not a policy"):
        envs.attach(object())
    with pytest.raises(ConfigError, match="Did you mean 'bf16'"):
        envs.attach(Linear(2, 3), encoding="bf61")
    with pytest.raises(ConfigError, match="Did you mean"):
        envs.attach(Linear(2, 3), sync="on-chnge")


def test_observations_without_a_fixed_size_are_refused(make_here: Make) -> None:
    envs = make_here([lambda: SpaceEnv(spaces.Text(5), spaces.Discrete(2))] * 2)
    with pytest.raises(ConfigError, match="fixed size"):
        envs.attach(Linear())


def test_a_policy_that_fails_on_a_worker_says_how(make_local: Make) -> None:
    policy = Failing()
    envs = make_local(wide(4))
    envs.reset(seed=1)
    envs.attach(policy, seed=1, sync="on-change", encoding="fp32")
    envs.rollout(2)
    good = policy.slope
    policy.slope = good + np.float32(1000.0)
    envs.publish(policy)
    with pytest.raises(PolicyError, match=r"worker 0:(.|\n)*ZeroDivisionError: the policy is broken"):
        envs.rollout(2)
    policy.slope = good
    envs.publish(policy)
    assert envs.rollout(2).T == 2


def test_vectorised_blocks_cannot_take_a_policy() -> None:
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    with (
        clusterenv.ClusterEnv.from_blocks(CartPoleVectorEnv, 4, cluster="inproc") as envs,
        pytest.raises(ConfigError, match="vectorised blocks"),
    ):
        envs.attach(Linear(4, 2))


def test_wide_env_is_what_it_says() -> None:
    assert WideEnv().action_space == spaces.Discrete(CHOICES)
