"""The network for small observations: an actor and a critic side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.learners.common.networks.base import Network
from clusterenv.learners.common.networks.encoding import Encoder, Normalizer
from clusterenv.learners.common.networks.heads import ACTOR_GAIN, CRITIC_GAIN, outputs_of, spread_of, with_spread
from clusterenv.learners.common.networks.layers import mlp
from clusterenv.policy.distributions import distribution_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space
    from torch import Tensor, nn

    from clusterenv.learners.common.networks.base import State


class ActorCritic(Network):
    """An actor and a critic that share nothing but the encoder.

    Args:
        observation_space: of one environment.
        action_space: of one environment: Discrete, MultiDiscrete, MultiBinary or Box.
        hidden: sizes of the hidden layers, the same for both.
        normalize: whether observations are normalised by their running mean and variance.
        values: how many the critic tells: one, or one for each of several tasks.
        first_spread: the standard deviation of continuous actions before anything is learned.

    Example:
        >>> import torch
        >>> from gymnasium import spaces
        >>> net = ActorCritic(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
        >>> params, value, state = net(torch.zeros(3, 4))
        >>> params.shape, value.shape, state
        (torch.Size([3, 2]), torch.Size([3]), ())
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        hidden: Sequence[int] = (64, 64),
        normalize: bool = False,
        values: int = 1,
        first_spread: float = 1.0,
    ) -> None:
        super().__init__()
        self.distribution = distribution_for(action_space)
        self.encoder = Encoder(observation_space)
        self.normalizer = Normalizer(self.encoder.size) if normalize else None
        self.log_std = spread_of(self.distribution, first_spread)
        self.actor = mlp(self.encoder.size, hidden, outputs_of(self.distribution), last_gain=ACTOR_GAIN)
        self.critic = mlp(self.encoder.size, hidden, values, last_gain=CRITIC_GAIN)

    def forward(self, obs: Any, state: State = ()) -> tuple[Tensor, Tensor | None, State]:
        """Observations with n rows -> parameters [n, P], values [n] or None, and the (empty) state."""
        rows = self.rows(obs)
        return with_spread(self.actor(rows), self.log_std), self.values(rows), state

    def rows(self, obs: Any) -> Tensor:
        """What the two networks see: [n, size]."""
        rows: Tensor = self.encoder(obs)
        return rows if self.normalizer is None else self.normalizer(rows)

    def value(self, obs: Any) -> Tensor:
        """The critic alone: observations with n rows -> [n]."""
        value: Tensor = self.get_submodule("critic")(self.rows(obs))
        return value.squeeze(-1)

    def parts(self) -> list[list[nn.Parameter]]:
        """The parameters of the actor, and those of the critic."""
        critic = list(self.get_submodule("critic").parameters())
        own = {id(parameter) for parameter in critic}
        return [[parameter for parameter in self.parameters() if id(parameter) not in own], critic]

    def learn_scale(self, obs: Any) -> None:
        """Take observations with n rows into the running mean and variance, if there is one."""
        if self.normalizer is not None:
            self.normalizer.learn(self.encoder(obs))
