"""Settings that are known to work, by environment. What is not named has the default of `PPOConfig`."""

from __future__ import annotations

from typing import Any, Literal

from clusterenv.learners.ppo.config import PPOConfig

PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {},
    # Long fragments and many small gradient steps: seeds 1 and 2 ended at 235 and 217 on one machine, at 241 and 124 on
    # another: some runs stay near 125 for long. No other seed was tried.
    "LunarLander-v3": {
        "num_envs": 16,
        "rollout_steps": 1024,
        "total_steps": 1_000_000,
        "learning_rate": 3e-4,
        "gamma": 0.999,
        "gae_lambda": 0.98,
        "epochs": 4,
        "minibatches": 256,
        "entropy_coef": 0.01,
    },
}

# What is different when workers stream. The learner is slower than they are, so each batch waits until those before it
# have been learned from, and is as old as the queue is long: workers x stream_buffers fragments. Short fragments, one
# buffer per worker and fewer gradient steps per batch keep the learner near the policy that acted. Minibatches have 64
# transitions as in lock step. Three seeds ended at 249, 252 and 250 with APS, at 231, 128 and 266 with every version
# fetched; with 1,024 steps and two buffers, between 119 and 224 after 1,000,000 steps (docs/results/aps.md).
STREAM_PRESETS: dict[str, dict[str, Any]] = {
    "LunarLander-v3": {
        "rollout_steps": 256,
        "minibatches": 32,
        "stream_buffers": 1,
        "total_steps": 1_500_000,
    },
}


def preset(env_id: str, mode: Literal["lock step", "stream"] = "lock step") -> PPOConfig:
    """The settings for an environment; the defaults if there are none of its own.

    Example:
        >>> preset("LunarLander-v3").rollout_steps
        1024
        >>> preset("LunarLander-v3", "stream").rollout_steps
        256
    """
    settings = dict(PRESETS.get(env_id, {}))
    if mode == "stream":
        settings |= STREAM_PRESETS.get(env_id, {})
    return PPOConfig(env_id=env_id, mode=mode, **settings)
