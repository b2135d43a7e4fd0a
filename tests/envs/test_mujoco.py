"""MuJoCo: continuous control through the workers, with observations on a scale that travels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import clusterenv
from clusterenv.learners.common import torch_distributions, trees
from clusterenv.learners.common.networks import ActorCritic

pytest.importorskip("mujoco", reason='MuJoCo is not installed: pip install "clusterenv[mujoco]"')


def test_half_cheetah_runs_with_a_gaussian_and_normalised_observations() -> None:
    with clusterenv.make_vec("HalfCheetah-v5", 4, cluster="local:2") as envs:
        envs.reset(seed=1)
        network = ActorCritic(envs.single_observation_space, envs.single_action_space, normalize=True)
        envs.attach(network, sync="on-change", encoding="fp32", runtime="onnx", seed=5)
        for _ in range(3):
            batch = envs.rollout(16).to(torch)
            assert batch.action.shape == (16, 4, 6)
            assert np.isfinite(batch.reward.numpy()).all()
            params = network.unroll(batch.obs, batch.state, batch.first, batch.final_obs, batch.final_at).params
            logp = torch_distributions.log_prob(network.distribution, params[:-1], batch.action)
            torch.testing.assert_close(logp, batch.logp, atol=1e-4, rtol=0)
            network.learn_scale(trees.rows(batch.obs))
            envs.publish(network)
        assert network.normalizer is not None
        assert network.normalizer.count.item() == 3 * 17 * 4
