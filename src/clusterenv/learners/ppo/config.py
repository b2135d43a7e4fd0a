"""The settings of PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from clusterenv.errors import ConfigError
from clusterenv.learners.common.config import ActorCriticConfig, check


@dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig):
    """Train an agent with proximal policy optimisation.

    Example:
        >>> PPOConfig(env_id="CartPole-v1", num_envs=8, rollout_steps=64).batch_size
        512
    """

    # The clip keeps the learner near the policy that acted: on CartPole, however many updates follow on old data, the
    # divergence stops at 0.02 to 0.03 nats. A threshold above that would have to be lowered by the stall rule.
    aps_threshold: ClassVar[float] = 0.003

    publish_every: Literal["update", "gradient step"] = "update"
    """when a new version exists: after all the gradient steps on a batch, or after each (stream only)"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    epochs: int = 10
    """passes over each batch"""
    minibatches: int = 8
    """gradient steps per pass"""
    clip: float = 0.2
    """how far the probability ratio may move from 1 before its gradient is cut"""
    target_kl: float | None = None
    """no further pass over a batch once the policy has moved this far from the one that acted, in nats"""
    normalize_advantage: bool = True
    """give the advantages of each minibatch mean 0 and deviation 1"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "minibatches"):
            check(name, getattr(self, name), least=1)
        check("gae_lambda", self.gae_lambda, least=0, most=1)
        check("clip", self.clip, above=0)
        if self.target_kl is not None:
            check("target_kl", self.target_kl, above=0)
        if self.publish_every == "gradient step" and self.mode != "stream":
            raise ConfigError(
                "publish_every='gradient step' needs mode='stream': in lock step the workers wait while the learner "
                "learns, so nobody could ever act with the versions in between, and the savings would look too good."
            )
        if self.minibatches > self.batch_size:
            raise ConfigError(
                f"minibatches={self.minibatches} is more than the {self.batch_size} transitions of a batch "
                f"(rollout_steps={self.rollout_steps} x {self.batch_slots} slots): some would be empty. "
                f"Ask for at most {self.batch_size}, or for more transitions."
            )
        if self.normalize_advantage and 2 * self.minibatches > self.batch_size:
            raise ConfigError(
                f"minibatches={self.minibatches} for the {self.batch_size} transitions of a batch "
                f"(rollout_steps={self.rollout_steps} x {self.batch_slots} slots) and normalize_advantage=True: the "
                "advantage of a transition that is alone in its minibatch becomes 0, and the policy learns nothing of "
                "it. Have at least two in each, or set normalize_advantage=False."
            )
