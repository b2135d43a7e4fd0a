"""Stable-Baselines3's PPO on CartPole-v1, with the environments on worker processes.

`envs.as_sb3()` is a `VecEnv`: what takes a `SubprocVecEnv` takes it. The batch must reset in the same step, which is
what Stable-Baselines3 expects.

Its policies also act on the workers. `envs.attach(model.policy)` is all it takes; the evaluation at the end does that,
with the mode of the distribution instead of samples. To collect data so and train with a loop of your own, attach with
a rule (`sync="on-change"`, say) and call `envs.publish(model.policy)` after each update.

    pip install "clusterenv[sb3,train]"
    python examples/sb3_ppo.py                           # about a minute on two cores
"""
# ruff: noqa: T201  (a script may print)

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import torch
import tyro
from stable_baselines3 import PPO

import clusterenv


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train Stable-Baselines3's PPO on CartPole-v1."""

    env_id: str = "CartPole-v1"
    """the environment"""
    cluster: str = "local:2"
    """where the environments run"""
    num_envs: int = 8
    """number of environments (slots)"""
    total_steps: int = 50_000
    """step budget, over all environments"""
    evaluation_steps: int = 500
    """steps of each environment in the evaluation; one episode of CartPole-v1 has at most 500"""
    seed: int = 1
    """seed of the network, the actions and the environments"""


def main() -> None:
    """Run the example."""
    args = tyro.cli(Args)
    torch.set_num_threads(1)
    # In the place of: make_vec_env(args.env_id, n_envs=args.num_envs, vec_env_cls=SubprocVecEnv)
    envs = clusterenv.make_vec(
        args.env_id, num_envs=args.num_envs, cluster=args.cluster, vector_kwargs={"autoreset_mode": "SameStep"}
    )
    with closing(envs):
        # The settings that the RL Zoo gives for CartPole-v1, with a learning rate and a clip that fall to zero.
        model = PPO(
            "MlpPolicy",
            envs.as_sb3(),
            n_steps=32,
            batch_size=256,
            n_epochs=20,
            gamma=0.98,
            gae_lambda=0.8,
            ent_coef=0.0,
            learning_rate=lambda left: 1e-3 * left,
            clip_range=lambda left: 0.2 * left,
            seed=args.seed,
            device="cpu",
        )
        model.learn(total_timesteps=args.total_steps)

        envs.reset(seed=args.seed + 1_000)
        envs.attach(model.policy, sync="never", deterministic=True)
        episodes = envs.rollout(args.evaluation_steps).episodes
        mean = f"{episodes.returns.mean():.1f}" if len(episodes.returns) else "none"
        print(f"mean return of {len(episodes.returns)} evaluation episodes: {mean}")


if __name__ == "__main__":
    main()
