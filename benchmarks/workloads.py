"""What is stepped: environments, how many of them, and the suites that group them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One environment and the number of copies of it."""

    name: str
    env_id: str
    num_envs: int
    warmup_steps: int
    """Steps of each environment before the clock starts, so that the episodes have drifted apart."""
    preset: str = "plain"
    """`plain`, or `atari`: four frames skipped, 84 x 84 grey, four frames stacked."""


def _cartpole(num_envs: int) -> Workload:
    return Workload(name=f"cartpole-{num_envs}", env_id="CartPole-v1", num_envs=num_envs, warmup_steps=60)


def _lunarlander(num_envs: int) -> Workload:
    return Workload(name=f"lunarlander-{num_envs}", env_id="LunarLander-v3", num_envs=num_envs, warmup_steps=300)


# The module before the colon makes a worker process register the games by itself.
_BREAKOUT = Workload(name="breakout-32", env_id="ale_py:ALE/Breakout-v5", num_envs=32, warmup_steps=100, preset="atari")

SUITES: dict[str, tuple[Workload, ...]] = {
    "default": (_cartpole(64), _cartpole(256), _lunarlander(64), _BREAKOUT),
    "quick": (_cartpole(64),),
    # For a machine with 16 cores: enough environments per worker to fill them.
    "cores16": (_cartpole(1024), _cartpole(256), _lunarlander(256)),
    # A policy, on the workers or on the head: 64-64 units, or IMPALA's shallow network for images.
    "policy": (_lunarlander(64), _cartpole(64), _BREAKOUT),
    "policy16": (_cartpole(1024), _lunarlander(256)),
}
