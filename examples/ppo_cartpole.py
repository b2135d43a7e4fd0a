"""PPO on CartPole-v1, with the environments on worker processes.

The learner is an ordinary single-file PPO: it calls `envs.step(actions)` and never notices where the
environments live. Only one line is ClusterEnv's, the one that makes them.

    python examples/ppo_cartpole.py                      # two worker processes on this machine
    python examples/ppo_cartpole.py --cluster inproc     # no processes, for the debugger
    python examples/ppo_cartpole.py --help

It stops as soon as the last 100 finished episodes return 475 on average (exit code 0), or when the step
budget is spent (exit code 1). The same seed gives the same run, whatever the number of workers.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tyro
from gymnasium.spaces import flatdim
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

import clusterenv

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray

# Shapes: T steps in a rollout, N environments (slots), D numbers in an observation, A actions,
# B transitions in a batch.


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train PPO on CartPole-v1 until it is solved."""

    env_id: str = "CartPole-v1"
    """the environment: flat observations, discrete actions"""
    cluster: str = "local:2"
    """where the environments run"""
    num_envs: int = 32
    """number of environments (slots)"""
    seed: int = 1
    """seed of the network, the sampled actions and the environments"""
    target_return: float = 475.0
    """stop when the average return of the last `window` finished episodes reaches this"""
    window: int = 100
    """number of finished episodes in that average"""
    total_steps: int = 500_000
    """step budget, over all environments"""
    rollout_steps: int = 128
    """steps per environment between two updates"""
    learning_rate: float = 1e-3
    """learning rate at the start; it falls linearly to zero over the step budget"""
    gamma: float = 0.99
    """discount"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    epochs: int = 6
    """passes over each rollout"""
    minibatches: int = 8
    """minibatches per pass"""
    clip: float = 0.2
    """how far the probability ratio may move from 1 before its gradient is cut"""
    entropy_coef: float = 0.01
    """weight of the entropy bonus at the start; it falls with the learning rate"""
    value_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """largest norm of a gradient"""
    torch_threads: int = 1
    """threads of the learner; the other cores are for the workers"""

    def __post_init__(self) -> None:
        """Refuse a budget without a single rollout, which would end before it began."""
        if self.total_steps < self.num_envs * self.rollout_steps:
            raise ValueError(
                f"total_steps={self.total_steps} is less than one rollout of num_envs={self.num_envs} x "
                f"rollout_steps={self.rollout_steps}. Raise total_steps or lower the other two."
            )


class Agent(nn.Module):
    """An actor and a critic that share nothing."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        """Make both networks, with a nearly uniform first policy."""
        super().__init__()
        self.actor = mlp(obs_size, num_actions, last_gain=0.01)
        self.critic = mlp(obs_size, 1, last_gain=1.0)

    def policy(self, obs: Tensor) -> Tensor:
        """Return the log-probability of each action, [..., D] -> [..., A]."""
        logits: Tensor = self.actor(obs)
        return logits.log_softmax(-1)

    def value(self, obs: Tensor) -> Tensor:
        """Return the expected return, [..., D] -> [...]."""
        value: Tensor = self.critic(obs)  # [..., 1]
        return value.squeeze(-1)


def log_prob_of(action: Tensor, policy: Tensor) -> Tensor:
    """Return the log-probability of the actions taken, [...] and [..., A] -> [...]."""
    return policy.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def mlp(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    """Return a network with two hidden layers and orthogonal weights."""
    layers = [nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
    for layer, gain in zip(layers, [2**0.5, 2**0.5, last_gain], strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


@dataclass(frozen=True)
class Rollout:
    """T steps of N environments. Step t leads from `obs[t]` to `obs[t + 1]`."""

    obs: Tensor  # [T + 1, N, D]
    action: Tensor  # [T, N]
    reward: Tensor  # [T, N]
    terminated: Tensor  # [T, N] bool: nothing follows, as opposed to a truncation
    valid: Tensor  # [T, N] bool: the action was carried out and its outcome is known


class Sampler:
    """Steps the environments, and keeps the returns of the last finished episodes."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], seed: int, window: int) -> None:
        """Reset the environments."""
        self.envs = envs
        self.obs, _ = envs.reset(seed=seed)  # [N, D]
        self.done: NDArray[np.bool_] = np.zeros(envs.num_envs, dtype=np.bool_)
        self.running_return = np.zeros(envs.num_envs)
        self.returns: deque[float] = deque(maxlen=window)

    @property
    def average_return(self) -> float:
        """Average return of the last finished episodes, NaN before the first."""
        return float(np.mean(self.returns)) if self.returns else float("nan")

    @torch.no_grad()
    def rollout(self, agent: Agent, steps: int) -> Rollout:
        """Act with the agent for some steps."""
        observations, transitions = [torch.as_tensor(self.obs)], []
        for _ in range(steps):
            probabilities = agent.policy(observations[-1]).exp()  # [N, D] -> [N, A]
            action = probabilities.multinomial(1).squeeze(1)  # [N, A] -> [N]
            transitions.append((action, *self.step(action.numpy())))
            observations.append(torch.as_tensor(self.obs))
        # T tuples of [N] -> four tensors of [T, N]
        action, reward, terminated, valid = (torch.stack(rows) for rows in zip(*transitions, strict=True))
        return Rollout(torch.stack(observations), action, reward, terminated, valid)

    def step(self, action: NDArray[np.int64]) -> tuple[Tensor, Tensor, Tensor]:
        """Advance every environment, and return reward, terminated and valid, each [N]."""
        self.obs, reward, terminated, truncated, info = self.envs.step(action)
        # Two kinds of step teach nothing. The step after an episode's end ignores the action and brings
        # the first observation of the next episode (Gymnasium's NEXT_STEP autoreset). And when a worker
        # dies under a step, its slots come back truncated, without an outcome.
        lost = info.get("worker_lost", np.zeros_like(self.done))
        valid = ~self.done & ~lost
        self.done = terminated | truncated
        self.running_return += reward  # 0 in the step that resets
        self.returns.extend(self.running_return[self.done & ~lost].tolist())
        self.running_return[self.done] = 0.0
        return torch.as_tensor(reward).float(), torch.as_tensor(terminated), torch.as_tensor(valid)


def advantages(rollout: Rollout, value: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Generalised advantage estimation, [T, N], from the values of all observations, [T + 1, N].

    A truncated episode would have gone on, so its last step counts on the value of its last observation,
    which is `obs[t + 1]` as for any other step. Only a termination has no future. The step after an
    episode's end is not valid; its advantage of zero keeps two episodes apart.
    """
    target = rollout.reward + gamma * torch.where(rollout.terminated, 0.0, value[1:])
    delta = target - value[:-1]
    result = torch.zeros_like(delta)
    following = torch.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        following = torch.where(rollout.valid[t], delta[t] + gamma * gae_lambda * following, 0.0)
        result[t] = following
    return result


@dataclass(frozen=True)
class Batch:
    """Transitions to learn from, in any order."""

    obs: Tensor  # [B, D]
    action: Tensor  # [B]
    log_prob: Tensor  # [B] of the action, under the policy that took it
    advantage: Tensor  # [B]
    target: Tensor  # [B] for the value

    def pick(self, index: Tensor) -> Batch:
        """Return the transitions at an index, or where a mask is true."""
        return Batch(
            obs=self.obs[index],
            action=self.action[index],
            log_prob=self.log_prob[index],
            advantage=self.advantage[index],
            target=self.target[index],
        )


@torch.no_grad()
def make_batch(args: Args, agent: Agent, rollout: Rollout) -> Batch:
    """Return the valid transitions of a rollout; the agent must still be the one that acted."""
    value = agent.value(rollout.obs)  # [T + 1, N]
    log_prob = log_prob_of(rollout.action, agent.policy(rollout.obs[:-1]))  # [T, N]
    advantage = advantages(rollout, value, args.gamma, args.gae_lambda)
    whole = Batch(rollout.obs[:-1], rollout.action, log_prob, advantage, advantage + value[:-1])
    return whole.pick(rollout.valid)  # [T, N, ...] -> [B, ...], B <= T * N


def ppo_loss(args: Args, agent: Agent, batch: Batch, entropy_coef: float) -> Tensor:
    """Return PPO's clipped loss of a minibatch, with value loss and entropy bonus."""
    policy = agent.policy(batch.obs)  # [B, D] -> [B, A]
    ratio = (log_prob_of(batch.action, policy) - batch.log_prob).exp()  # [B]
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    clipped = ratio.clamp(1.0 - args.clip, 1.0 + args.clip)
    policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
    value_loss = 0.5 * (agent.value(batch.obs) - batch.target).square().mean()
    entropy = -(policy.exp() * policy).sum(-1).mean()
    return policy_loss + args.value_coef * value_loss - entropy_coef * entropy


def learn(args: Args, agent: Agent, optimizer: torch.optim.Optimizer, rollout: Rollout, left: float) -> None:
    """Update the agent with one rollout; `left` is the share of the step budget that is left."""
    for group in optimizer.param_groups:
        group["lr"] = args.learning_rate * left
    batch = make_batch(args, agent, rollout)
    for _ in range(args.epochs):
        for index in torch.randperm(len(batch.obs)).tensor_split(args.minibatches):
            loss = ppo_loss(args, agent, batch.pick(index), args.entropy_coef * left)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


class Report:
    """Tells how far we are: a progress bar on a terminal, a line per update elsewhere."""

    def __init__(self, console: Console, args: Args) -> None:
        """Make the bar; it shows once the progress is entered."""
        self.console = console
        self.target_return = args.target_return
        self.started = time.perf_counter()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.bar = self.progress.add_task("starting", total=args.total_steps)

    def update(self, steps: int, average_return: float) -> None:
        """Show the steps done so far and the average return."""
        text = f"return {average_return:5.1f} of {self.target_return:.0f}"
        self.progress.update(self.bar, completed=steps, description=text)
        if not self.console.is_terminal:
            self.say(f"{text}, {steps} steps, {self.elapsed_s:.1f} s")

    def say(self, text: str) -> None:
        """Write one plain line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started


def train(args: Args, envs: VectorEnv[Any, Any, Any], report: Report) -> bool:
    """Train until the target return, and return whether it was reached within the step budget."""
    agent = Agent(flatdim(envs.single_observation_space), flatdim(envs.single_action_space))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    sampler = Sampler(envs, args.seed, args.window)
    steps_per_rollout = args.num_envs * args.rollout_steps
    steps = 0
    solved = False
    while not solved and steps + steps_per_rollout <= args.total_steps:
        rollout = sampler.rollout(agent, args.rollout_steps)
        learn(args, agent, optimizer, rollout, left=1.0 - steps / args.total_steps)
        steps += steps_per_rollout
        solved = len(sampler.returns) == args.window and sampler.average_return >= args.target_return
        report.update(steps, sampler.average_return)
    outcome = "Solved" if solved else f"Not solved, the target is {args.target_return:.0f}"
    report.say(
        f"{outcome}: average return {sampler.average_return:.1f} over the last {len(sampler.returns)} "
        f"episodes, after {steps} steps and {report.elapsed_s:.1f} s (seed {args.seed})."
    )
    return solved


def main() -> int:
    """Run the example, and return the exit code."""
    args = tyro.cli(Args)
    torch.set_num_threads(args.torch_threads)
    torch.manual_seed(args.seed)
    report = Report(Console(), args)
    envs = clusterenv.make_vec(args.env_id, num_envs=args.num_envs, cluster=args.cluster)
    with closing(envs), report.progress:
        solved = train(args, envs, report)
    return 0 if solved else 1


if __name__ == "__main__":
    sys.exit(main())
