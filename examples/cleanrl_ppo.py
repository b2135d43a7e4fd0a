"""PPO on CartPole-v1 in the style of CleanRL: one file, no classes but the agent, the loop in plain sight.

Such a script moves to worker processes by one line, the one that makes `envs` (and its import). Nothing else here knows
about ClusterEnv: not the agent, not the storage, not the loop that reads `final_info`.

    python examples/cleanrl_ppo.py                               # about a minute on two cores
    python examples/cleanrl_ppo.py --seed 2 --learning-rate 5e-4
    tensorboard --logdir runs

The last line says what the last 100 episodes returned.
"""
# A script may print, and torch is typed in parts only.
# ruff: noqa: T201
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
import tyro
from torch import Tensor, nn, optim
from torch.distributions.categorical import Categorical
from torch.utils.tensorboard import SummaryWriter

import clusterenv

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Args:
    """Train PPO on CartPole-v1."""

    exp_name: str = "cleanrl_ppo"
    """first part of the name of the run"""
    seed: int = 1
    """seed of the experiment"""
    env_id: str = "CartPole-v1"
    """id of the environment"""
    total_timesteps: int = 160_000
    """steps of the experiment, over all environments"""
    learning_rate: float = 1e-3
    """learning rate of the optimizer at the start"""
    num_envs: int = 32
    """number of parallel environments"""
    num_steps: int = 64
    """steps of each environment per rollout"""
    anneal_lr: bool = True
    """let the learning rate fall to zero over the experiment"""
    gamma: float = 0.98
    """discount"""
    gae_lambda: float = 0.8
    """lambda of generalised advantage estimation"""
    num_minibatches: int = 8
    """minibatches per epoch"""
    update_epochs: int = 6
    """epochs per rollout"""
    clip_coef: float = 0.2
    """clipping coefficient of the surrogate"""
    ent_coef: float = 0.0
    """weight of the entropy"""
    vf_coef: float = 0.5
    """weight of the value function"""
    max_grad_norm: float = 0.5
    """largest norm of the gradient"""
    threads: int = 1
    """threads of torch; the other cores are for the environments"""


def make_env(env_id: str) -> Callable[[], gym.Env[Any, Any]]:
    """A factory of environments that count their returns."""

    def thunk() -> gym.Env[Any, Any]:
        env = gym.make(env_id)
        return gym.wrappers.RecordEpisodeStatistics(env)

    return thunk


def layer_init(layer: nn.Linear, std: float = 2**0.5) -> nn.Linear:
    """Orthogonal weights, no bias."""
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    """Actor and critic, side by side."""

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape or ()))
        actions = int(getattr(envs.single_action_space, "n", 0))
        self.critic = nn.Sequential(
            layer_init(nn.Linear(inputs, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 1), std=1.0),
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(inputs, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, 64)),
            nn.Tanh(),
            layer_init(nn.Linear(64, actions), std=0.01),
        )

    def get_value(self, x: Tensor) -> Tensor:
        """The critic alone."""
        value: Tensor = self.critic(x)
        return value

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action, its log-probability, the entropy, the value. Samples an action if none is given."""
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


if __name__ == "__main__":
    args = tyro.cli(Args)
    batch_size = args.num_envs * args.num_steps
    minibatch_size = batch_size // args.num_minibatches
    num_iterations = args.total_timesteps // batch_size
    writer = SummaryWriter(f"runs/{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}")

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)

    # The one changed line. On Gymnasium 0.29, for which such scripts are written, it was:
    #   envs = gym.vector.SyncVectorEnv([make_env(args.env_id) for _ in range(args.num_envs)])
    # The last two arguments bring back what 0.29 did: a reset in the step that ends an episode, and `final_info`.
    envs = clusterenv.ClusterEnv(
        [make_env(args.env_id) for _ in range(args.num_envs)],
        cluster="local:2",
        autoreset_mode="SameStep",
        infos="gymnasium-0.29",
    )

    agent = Agent(envs)
    optimizer = optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

    # storage
    obs = torch.zeros((args.num_steps, args.num_envs) + (envs.single_observation_space.shape or ()))
    actions = torch.zeros((args.num_steps, args.num_envs), dtype=torch.long)
    logprobs = torch.zeros((args.num_steps, args.num_envs))
    rewards = torch.zeros((args.num_steps, args.num_envs))
    dones = torch.zeros((args.num_steps, args.num_envs))
    values = torch.zeros((args.num_steps, args.num_envs))
    returns_of_episodes: deque[float] = deque(maxlen=100)

    mean_return = float("nan")
    global_step = 0
    start_time = time.time()
    first_obs, info = envs.reset(seed=args.seed)
    next_obs = torch.Tensor(first_obs)
    next_done = torch.zeros(args.num_envs)

    for iteration in range(1, num_iterations + 1):
        if args.anneal_lr:
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - (iteration - 1) / num_iterations)

        for step in range(args.num_steps):
            global_step += args.num_envs
            obs[step] = next_obs
            dones[step] = next_done

            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
            actions[step], logprobs[step], values[step] = action, logprob, value.flatten()

            obs_array, reward, terminations, truncations, infos = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward)
            next_obs, next_done = torch.Tensor(obs_array), torch.Tensor(terminations | truncations)

            for info in infos.get("final_info", ()):  # None where nothing ended
                if info and "episode" in info:
                    returns_of_episodes.append(float(info["episode"]["r"]))
                    writer.add_scalar("charts/episodic_return", info["episode"]["r"], global_step)
                    writer.add_scalar("charts/episodic_length", info["episode"]["l"], global_step)

        # advantages, backwards in time
        with torch.no_grad():
            next_value = agent.get_value(next_obs).flatten()
            advantages = torch.zeros_like(rewards)
            lastgaelam = torch.zeros(args.num_envs)
            for t in reversed(range(args.num_steps)):
                last = t == args.num_steps - 1
                nextnonterminal = 1.0 - (next_done if last else dones[t + 1])
                nextvalues = next_value if last else values[t + 1]
                delta = rewards[t] + args.gamma * nextvalues * nextnonterminal - values[t]
                lastgaelam = delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
                advantages[t] = lastgaelam
            returns = advantages + values

        # [T, N, ...] -> [T * N, ...]
        b_obs, b_actions, b_logprobs = obs.flatten(0, 1), actions.flatten(), logprobs.flatten()
        b_advantages, b_returns = advantages.flatten(), returns.flatten()

        for _epoch in range(args.update_epochs):
            for mb_inds in torch.randperm(batch_size).split(minibatch_size):
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions[mb_inds])
                ratio = (newlogprob - b_logprobs[mb_inds]).exp()
                mb_adv = b_advantages[mb_inds]
                mb_adv = (mb_adv - mb_adv.mean()) / (mb_adv.std() + 1e-8)

                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                pg_loss = torch.max(-mb_adv * ratio, -mb_adv * clipped).mean()
                v_loss = 0.5 * (newvalue.flatten() - b_returns[mb_inds]).square().mean()
                entropy_loss = entropy.mean()
                loss = pg_loss - args.ent_coef * entropy_loss + args.vf_coef * v_loss

                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        sps = int(global_step / (time.time() - start_time))
        if returns_of_episodes:
            mean_return = float(np.mean(returns_of_episodes))
        print(f"global_step={global_step}, episodic_return={mean_return:.1f}, SPS={sps}")
        writer.add_scalar("charts/learning_rate", optimizer.param_groups[0]["lr"], global_step)
        writer.add_scalar("losses/value_loss", v_loss.item(), global_step)
        writer.add_scalar("losses/policy_loss", pg_loss.item(), global_step)
        writer.add_scalar("losses/entropy", entropy_loss.item(), global_step)
        writer.add_scalar("charts/SPS", sps, global_step)

    envs.close()
    writer.close()
    print(
        f"mean return of the last {len(returns_of_episodes)} episodes: {mean_return:.1f}, "
        f"after {global_step} steps and {time.time() - start_time:.1f} s"
    )
