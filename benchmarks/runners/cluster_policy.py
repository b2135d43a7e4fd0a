"""ClusterEnv with a policy that acts on the workers, or on the head for comparison.

It is a 64-64 actor-critic; for images, IMPALA's shallow network.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import clusterenv
from benchmarks.runners.common import RealSteps, Spec, env_id_here, env_kwargs, env_wrappers, run
from clusterenv.learners.common.networks.make import make_network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

kinds: Any = torch.distributions  # its methods have no type hints

FRAGMENT = 64


class Agent(nn.Module):
    """The agent of the usual PPO script."""

    def __init__(self, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = _mlp(inputs, actions, 0.01), _mlp(inputs, 1, 1.0)

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        """Sample, as the script does."""
        return _sampled(self.actor(x), self.critic(x), action)


class ImageAgent(nn.Module):
    """The same with IMPALA's shallow network."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        self.network = make_network(observation_space, action_space, body="shallow")

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        """Sample, as the script does."""
        logits, value, _ = self.network(x)
        return _sampled(logits, value, action)


def _sampled(logits: Any, value: Any, action: Any) -> Any:
    chosen = kinds.Categorical(logits=logits)
    action = chosen.sample() if action is None else action
    return action, chosen.log_prob(action), chosen.entropy(), value


def _mlp(inputs: int, outputs: int, last: float) -> nn.Sequential:
    end = nn.Linear(64, outputs)
    # A last layer this small acts almost at random, so that the episodes are those of the other contenders.
    nn.init.orthogonal_(end.weight, last)
    nn.init.zeros_(end.bias)
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), end)


@contextmanager
def build(spec: Spec) -> Iterator[Callable[[int], int]]:
    """Yield a step function; `settings["where"]` is "rollout", "stream" or "head"."""
    torch.set_num_threads(1)
    torch.manual_seed(spec.seed)
    envs = clusterenv.make_vec(
        env_id_here(spec),
        num_envs=spec.num_envs,
        cluster=f"local:{spec.workers}",
        wrappers=env_wrappers(spec.preset),
        **env_kwargs(spec.preset),
    )
    try:
        observations, _ = envs.reset(seed=spec.seed)
        agent = _agent(envs, spec.preset)
        if spec.settings["where"] == "head":
            yield _on_the_head(envs, agent, observations)
            return
        envs.attach(agent, sync="on-change", seed=spec.seed)
        if spec.settings["where"] == "rollout":
            yield lambda i: envs.rollout(FRAGMENT).steps
            return
        with envs.stream(FRAGMENT, spec.num_envs // spec.workers) as stream:
            yield lambda i: next(stream).steps
    finally:
        envs.close()


def _agent(envs: Any, preset: str) -> Any:
    observations, actions = envs.single_observation_space, envs.single_action_space
    if preset == "atari":
        return ImageAgent(observations, actions)
    return Agent(math.prod(observations.shape or ()), int(actions.n))


def _on_the_head(envs: Any, agent: Any, observations: Any) -> Callable[[int], int]:
    counter, last = RealSteps(), [observations]

    def step(i: int) -> int:
        with torch.no_grad():
            actions, *_ = agent.get_action_and_value(torch.from_numpy(last[0]))
        last[0], _, terminated, truncated, _ = envs.step(actions.numpy())
        return counter.count(terminated, truncated)

    return step


if __name__ == "__main__":
    run(build)
