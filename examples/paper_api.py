"""The loop of the published ClusterEnv on this API: the policy acts on the workers and is synchronised when it drifts.

There, `env.step(agent)` sent the agent along and brought back what its copies had done. Here the same has three parts:

    envs.attach(agent, sync=clusterenv.APS(threshold=...))    # once: the policy moves to the workers
    batch = envs.rollout(steps)                               # they act; nothing crosses a process border per step
    envs.publish(agent)                                       # a new version exists; who has drifted gets it

The agent is the paper's, unchanged: `forward(obs)` gives (action, log-probability, entropy, value). The learner is PPO,
and its loss looks at one thing that a synchronous learner need not know: the log-probability under the policy that
really acted, `batch.logp`, however old that policy was.

    python examples/paper_api.py                              # LunarLander-v3, a few iterations, some syncs fewer
    python examples/paper_api.py --kl-threshold 0.02 --total-steps 500000
    python examples/paper_api.py --sync on-change             # the rule to compare with
"""
# A script may print, and torch is typed in parts only.
# ruff: noqa: T201
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tyro
from torch import Tensor, nn
from torch.distributions import Categorical

import clusterenv

if TYPE_CHECKING:
    from clusterenv import Batch

# Shapes: T steps in a rollout, N environments (slots), K episodes that ended in it.


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train PPO with the policy on the workers."""

    env_id: str = "LunarLander-v3"
    """the environment: flat observations, discrete actions"""
    nodes: int = 2
    """worker processes on this machine, in the place of the paper's nodes"""
    envs_per_node: int = 16
    """environments of each"""
    kl_threshold: float = 0.005
    """move weights when the mean KL per state is larger, in nats"""
    sync: str = "aps"
    """aps with that threshold, or another rule: on-change, every:4, always, never"""
    total_steps: int = 50_000
    """step budget, over all environments"""
    rollout_steps: int = 64
    """steps of each environment per iteration"""
    learning_rate: float = 5e-4
    """of Adam"""
    epochs: int = 4
    """passes over each batch"""
    minibatches: int = 4
    """minibatches per pass"""
    gamma: float = 0.99
    """discount"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    clip: float = 0.2
    """how far the probability ratio may move from 1 before its gradient is cut"""
    seed: int = 1
    """seed of everything"""


class Agent(nn.Module):
    """The paper's agent: two separate networks, 2 x 64, tanh."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()
        self.actor = mlp(obs_size, num_actions)
        self.critic = mlp(obs_size, 1)

    def forward(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(action, log-probability, entropy, value); samples an action if none is given."""
        distribution = Categorical(logits=self.actor(obs))
        if action is None:
            action = distribution.sample()
        return action, distribution.log_prob(action), distribution.entropy(), self.critic(obs).squeeze(-1)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


@torch.no_grad()
def advantages(args: Args, agent: Agent, batch: Batch) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation and the targets of the value, each [T, N]. The batch is one of tensors."""
    value = agent.critic(batch.obs).squeeze(-1)  # [T + 1, N]
    following = value[1:].clone()
    # After an end, `obs[t + 1]` belongs to the next episode. A truncated episode would have gone on from its own last
    # observation; a terminated one has no future. The published code could not tell the two apart.
    following[batch.final_at] = agent.critic(batch.final_obs).squeeze(-1)  # [K]
    following[batch.terminated] = 0.0
    delta = batch.reward + args.gamma * following - value[:-1]
    keep = args.gamma * args.gae_lambda * (~(batch.terminated | batch.truncated)).float()
    result, later = torch.zeros_like(delta), torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        later = delta[t] + keep[t] * later
        result[t] = later
    return result, result + value[:-1]


def learn(args: Args, agent: Agent, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """PPO on one batch of tensors."""
    advantage, target = advantages(args, agent, batch)
    # [T, N, ...] -> [T * N, ...]
    obs, action, logp = batch.obs[:-1].flatten(0, 1), batch.action.flatten(), batch.logp.flatten()
    advantage, target = advantage.flatten(), target.flatten()
    for _ in range(args.epochs):
        for index in torch.randperm(len(obs)).tensor_split(args.minibatches):
            _, new_logp, entropy, value = agent(obs[index], action[index])
            ratio = (new_logp - logp[index]).exp()
            gain = (advantage[index] - advantage[index].mean()) / (advantage[index].std() + 1e-8)
            clipped = ratio.clamp(1.0 - args.clip, 1.0 + args.clip)
            policy_loss = -torch.minimum(ratio * gain, clipped * gain).mean()
            value_loss = 0.5 * (value - target[index]).square().mean()
            loss = policy_loss + 0.5 * value_loss - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def summary(stats: dict[str, Any], parameters: int) -> str:
    """The counters of the run: how often weights moved, why, and what that cost."""
    reasons = ", ".join(f"{reason} {count}" for reason, count in stats["sync_reasons"].items())
    total = stats["weight_bytes"]["total"]
    return (
        f"{stats['steps']} steps, {stats['publishes']} versions published\n"
        f"largest lag {stats['lag']['max']:.0f} versions, largest divergence {stats['divergence']['max']:.4f} nats\n"
        f"{stats['syncs']} syncs ({reasons}), {total} bytes; "
        f"every version in full would be {(stats['publishes'] + 1) * 4 * parameters} bytes"
    )


def main() -> None:
    """Run the example."""
    args = tyro.cli(Args)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    sync = clusterenv.APS(threshold=args.kl_threshold) if args.sync == "aps" else args.sync
    num_envs = args.nodes * args.envs_per_node
    envs = clusterenv.make_vec(args.env_id, num_envs=num_envs, cluster=f"local:{args.nodes}")
    with closing(envs):
        inputs = int(np.prod(envs.single_observation_space.shape or ()))
        agent = Agent(inputs, int(getattr(envs.single_action_space, "n", 0)))
        optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
        envs.reset(seed=args.seed)
        envs.attach(agent, sync=sync, seed=args.seed, measure=True)
        for iteration in range(1, max(1, args.total_steps // (num_envs * args.rollout_steps)) + 1):
            batch = envs.rollout(args.rollout_steps)
            learn(args, agent, optimizer, batch.to(torch))
            version = envs.publish(agent)
            returns = batch.episodes.returns
            shown = f"{returns.mean():7.1f}" if len(returns) else "      -"
            print(f"iteration {iteration:3d}  return {shown}  version {version}  lag {batch.lag.max()}")
        print(summary(envs.stats(), sum(p.numel() for p in agent.parameters())))


if __name__ == "__main__":
    main()
