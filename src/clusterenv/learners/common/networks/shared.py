"""The network for images and for memory: actor and critic are two layers on top of one body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterenv.learners.common import trees
from clusterenv.learners.common.networks.base import Network, Unrolled
from clusterenv.learners.common.networks.core import LstmCore
from clusterenv.learners.common.networks.heads import ACTOR_GAIN, CRITIC_GAIN, outputs_of, spread_of, with_spread
from clusterenv.learners.common.networks.layers import linear
from clusterenv.policy.distributions import distribution_for

if TYPE_CHECKING:
    from gymnasium import Space
    from torch import Tensor

    from clusterenv.learners.common.networks.base import State
    from clusterenv.learners.common.networks.bodies import ImageBody, VectorBody


class SharedActorCritic(Network):
    """An actor and a critic on one body, and on one memory if there is one.

    Args:
        body: makes features of observations.
        action_space: of one environment: Discrete, MultiDiscrete, MultiBinary or Box.
        lstm: the size of the memory; 0 for none.
        values: how many the critic tells: one, or one for each of several tasks.
        first_spread: the standard deviation of continuous actions before anything is learned.

    Example:
        >>> import torch
        >>> from gymnasium import spaces
        >>> from clusterenv.learners.common.networks.bodies import VectorBody
        >>> body = VectorBody(spaces.Box(-1, 1, (4,)), (64,), normalize=False)
        >>> net = SharedActorCritic(body, spaces.Discrete(2), lstm=32)
        >>> params, value, state = net(torch.zeros(3, 4), (torch.zeros(3, 32), torch.zeros(3, 32)))
        >>> params.shape, value.shape, len(state)
        (torch.Size([3, 2]), torch.Size([3]), 2)
    """

    def __init__(
        self,
        body: VectorBody | ImageBody,
        action_space: Space[Any],
        *,
        lstm: int = 0,
        values: int = 1,
        first_spread: float = 1.0,
    ) -> None:
        super().__init__()
        self.distribution = distribution_for(action_space)
        self.body = body
        self.core = LstmCore(body.size, lstm) if lstm else None
        self.state = () if self.core is None else self.core.state
        self.log_std = spread_of(self.distribution, first_spread)
        self.actor = linear(lstm or body.size, outputs_of(self.distribution), ACTOR_GAIN)
        self.critic = linear(lstm or body.size, values, CRITIC_GAIN)

    def forward(self, obs: Any, state: State = ()) -> tuple[Tensor, Tensor | None, State]:
        """Observations with n rows, and the state before them -> parameters [n, P], values [n], the state after."""
        features = self.body(obs)
        if self.core is not None:
            features, state = self.core(features, state)
        return self._params(features), self.values(features), state

    def unroll(
        self, obs: Any, state: State, first: Tensor, final_obs: Any, final_at: tuple[Tensor, Tensor]
    ) -> Unrolled:
        """As `Network.unroll`. Body and heads see all steps at once; only the memory goes through them in order."""
        if self.core is None:
            return super().unroll(obs, state, first, final_obs, final_at)
        features = self.body(trees.rows(obs)).unflatten(0, first.shape)
        output, states = self.core.unroll(features, state, first)
        value: Tensor = self.get_submodule("critic")(output).squeeze(-1)
        # The last observation of an episode comes after its last step, whose memory the next step has lost.
        before = tuple(part[final_at] for part in states)
        return Unrolled(self._params(output), value, self._final_value(final_obs, before, value.flatten(0, 1)))

    def _params(self, features: Tensor) -> Tensor:
        return with_spread(self.actor(features), self.log_std)

    def learn_scale(self, obs: Any) -> None:
        """Take observations with n rows into the running mean and variance, if there is one."""
        self.body.learn_scale(obs)
