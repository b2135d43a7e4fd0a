"""The settings of PPO: frozen, checked once, with the reason when they do not fit together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from clusterenv.config import check_num_envs, parse_cluster
from clusterenv.errors import ConfigError
from clusterenv.learners.common.sync import SyncConfig

# The clip keeps the learner near the policy that acted: on CartPole, however many updates follow on old data, the
# divergence stops at 0.02 to 0.03 nats. A threshold above that would leave all syncs to the stall rule.
THRESHOLD = 0.003


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Train an agent with proximal policy optimisation.

    Example:
        >>> PPOConfig(env_id="CartPole-v1", num_envs=8, rollout_steps=64).batch_size
        512
    """

    env_id: str = "CartPole-v1"
    """the environment"""
    cluster: str = "local:2"
    """where the environments run, and the policy beside them"""
    num_envs: int = 32
    """number of environments (slots)"""
    seed: int = 1
    """seed of the network, the sampled actions and the environments"""
    total_steps: int = 200_000
    """step budget, over all environments"""
    target_return: float | None = None
    """stop early, when the mean return of the last 100 episodes reaches this"""

    mode: Literal["lock step", "stream"] = "lock step"
    """lock step: workers wait while the learner learns; stream: nobody waits, data may be stale"""
    rollout_steps: int = 64
    """steps of each environment in a batch"""
    stream_slots: int | None = None
    """stream: environments in a batch; half of them if it is not given"""
    stream_buffers: int = 2
    """stream: fragments that a worker may be ahead; more keep it busy, and make the data older"""
    publish_every: Literal["update", "gradient step"] = "update"
    """when a new version exists: after all the gradient steps on a batch, or after each (stream only)"""
    sync: SyncConfig = field(default_factory=SyncConfig)
    """when workers fetch new weights"""
    encoding: Literal["fp32", "bf16", "bf16-delta"] = "bf16-delta"
    """how weights travel"""
    runtime: Literal["auto", "onnx", "torch"] = "auto"
    """what runs the policy on the workers"""
    measure_drift: bool = False
    """estimate how far the workers' policy has drifted even if the sync rule does not ask, to compare rules"""

    learning_rate: float = 1e-3
    """of Adam"""
    anneal: bool = True
    """let the learning rate and the entropy bonus fall to zero over the step budget"""
    gamma: float = 0.99
    """discount"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    epochs: int = 10
    """passes over each batch"""
    minibatches: int = 8
    """gradient steps per pass"""
    clip: float = 0.2
    """how far the probability ratio may move from 1 before its gradient is cut"""
    entropy_coef: float = 0.01
    """weight of the entropy bonus"""
    value_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """a longer gradient is cut to this, the actor's and the critic's each by itself"""
    target_kl: float | None = None
    """no further pass over a batch once the policy has moved this far from the one that acted, in nats"""
    normalize_advantage: bool = True
    """give the advantages of each minibatch mean 0 and deviation 1"""
    normalize_observations: bool = False
    """normalise observations by their running mean and variance"""
    hidden: tuple[int, ...] = (64, 64)
    """sizes of the hidden layers of actor and critic"""

    checkpoint_every_s: float = 60.0
    """seconds between checkpoints, where they are kept"""
    device: str = "cpu"
    """where the learner computes, for torch"""
    torch_threads: int = 1
    """threads of the learner; the other cores are for the workers"""

    def __post_init__(self) -> None:
        check_num_envs(self.num_envs)
        parse_cluster(self.cluster)
        self._check_numbers()
        self._check_together()

    @property
    def batch_slots(self) -> int:
        """Environments in one batch."""
        if self.mode == "lock step":
            return self.num_envs
        return max(1, self.num_envs // 2) if self.stream_slots is None else self.stream_slots

    @property
    def batch_size(self) -> int:
        """Transitions in one batch."""
        return self.rollout_steps * self.batch_slots

    def _check_numbers(self) -> None:
        for name in ("total_steps", "rollout_steps", "epochs", "minibatches", "torch_threads", "stream_buffers"):
            _check(name, getattr(self, name), least=1)
        for name in ("gamma", "gae_lambda"):
            _check(name, getattr(self, name), least=0, most=1)
        for name in ("entropy_coef", "value_coef", "seed"):
            _check(name, getattr(self, name), least=0)
        for name in ("learning_rate", "clip", "max_grad_norm", "checkpoint_every_s"):
            _check(name, getattr(self, name), above=0)
        if self.target_kl is not None:
            _check("target_kl", self.target_kl, above=0)
        if any(size < 1 for size in self.hidden):
            raise ConfigError(f"hidden={self.hidden} must be sizes of at least 1, such as (64, 64).")

    def _check_together(self) -> None:
        if self.stream_slots is not None and self.mode != "stream":
            raise ConfigError(
                f"stream_slots={self.stream_slots} means nothing in lock step, where a batch has all the environments. "
                "Leave it out, or use mode='stream'."
            )
        if not 1 <= self.batch_slots <= self.num_envs:
            raise ConfigError(f"stream_slots={self.stream_slots} must be from 1 to num_envs={self.num_envs}.")
        if self.publish_every == "gradient step" and self.mode != "stream":
            raise ConfigError(
                "publish_every='gradient step' needs mode='stream': in lock step the workers wait while the learner "
                "learns, so nobody could ever act with the versions in between, and the savings would look too good."
            )
        if self.minibatches > self.batch_size:
            raise ConfigError(
                f"minibatches={self.minibatches} is more than the {self.batch_size} transitions of a batch "
                f"(rollout_steps={self.rollout_steps} x {self.batch_slots} slots): some would be empty."
            )
        if self.total_steps < self.batch_size:
            raise ConfigError(
                f"total_steps={self.total_steps} is less than one batch of {self.batch_size} transitions "
                f"(rollout_steps={self.rollout_steps} x {self.batch_slots} slots): nothing would be learned. "
                "Raise total_steps or lower the other two."
            )


def _check(
    name: str, value: float, *, least: float | None = None, above: float | None = None, most: float | None = None
) -> None:
    rules = {
        f"at least {least}": least is None or value >= least,
        f"more than {above}": above is None or value > above,
        f"at most {most}": most is None or value <= most,
        "finite": math.isfinite(value),
    }
    for rule, holds in rules.items():
        if not holds:
            raise ConfigError(f"{name}={value!r} must be {rule}.")
