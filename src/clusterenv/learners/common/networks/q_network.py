"""The network of Q-learners: what each choice is worth, from a body, a memory if there is one, and one head or two."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from clusterenv.errors import ConfigError
from clusterenv.learners.common import trees
from clusterenv.learners.common.networks.bodies import ImageBody, VectorBody
from clusterenv.learners.common.networks.core import LstmCore
from clusterenv.learners.common.networks.layers import relu_layers
from clusterenv.learners.common.networks.make import layers_of
from clusterenv.policy.distributions import EpsilonGreedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

    from clusterenv.learners.common.networks.base import State
    from clusterenv.learners.common.networks.make import Body
    from clusterenv.spaces import Leaf


class UnrolledQ(NamedTuple):
    """What a Q-network says about T steps of N slots.

    Attributes:
        q: [T, N, A], of every choice at every observation.
        final_q: [K, A], of the last observations of episodes. Targets are made of it: no gradient flows through it.
        state: after every step, each [T, N, ...]; () if there is no memory.
    """

    q: Tensor
    final_q: Tensor
    state: State


class QNetwork(nn.Module):
    """Q-values on one body, and on one memory if there is one.

    Args:
        body: makes features of observations.
        distribution: how the workers choose by the Q-values.
        lstm: the size of the memory; 0 for none.
        dueling: whether the value of a state and the advantages of the choices are told by two streams.
        stream: sizes of the hidden layers of each stream, or of the only one.

    Attributes:
        distribution: how actions follow from the Q-values.
        state: the recurrent state of one slot, zeros at the start of an episode; () if there is none.

    Example:
        >>> body = VectorBody(spaces.Box(-1, 1, (4,)), (64,), normalize=False)
        >>> net = QNetwork(body, EpsilonGreedy(3, epsilon=0.1), stream=(64,))
        >>> q, _, _ = net(torch.zeros(5, 4))
        >>> q.shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        body: VectorBody | ImageBody,
        distribution: EpsilonGreedy,
        *,
        lstm: int = 0,
        dueling: bool = True,
        stream: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.distribution = distribution
        self.body = body
        self.core = LstmCore(body.size, lstm) if lstm else None
        self.state: tuple[Leaf, ...] = () if self.core is None else self.core.state
        self.advantage = _stream(lstm or body.size, stream, distribution.n)
        self.value = _stream(lstm or body.size, stream, 1) if dueling else None

    def forward(self, obs: Any, state: State = ()) -> tuple[Tensor, None, State]:
        """Observations with n rows, and the state before them -> Q-values [n, A], no value, the state after."""
        features = self.body(obs)
        if self.core is not None:
            features, state = self.core(features, state)
        return self._heads(features), None, state

    def unroll(
        self, obs: Any, state: State, first: Tensor, final_obs: Any, final_at: tuple[Tensor, Tensor]
    ) -> UnrolledQ:
        """The same for many steps at once: what the actor computed step by step, in a few large calls.

        Args:
            obs: [T, N, ...].
            state: before `obs[0]`, each [N, ...].
            first: [T, N]: where an episode begins. The state is cleared before such an observation.
            final_obs: [K, ...], the last observations of episodes.
            final_at: (t, n), each [K]: after which steps these were seen.
        """
        features = self.body(trees.rows(obs)).unflatten(0, first.shape)
        if self.core is None:
            return UnrolledQ(self._heads(features), self._final_q(final_obs, ()), ())
        output, states = self.core.unroll(features, state, first)
        # The last observation of an episode comes after its last step, whose memory the next step has lost.
        before = tuple(part[final_at] for part in states)
        return UnrolledQ(self._heads(output), self._final_q(final_obs, before), states)

    @torch.no_grad()
    def _final_q(self, obs: Any, state: State) -> Tensor:
        if not trees.length(obs):
            return next(self.parameters()).new_zeros(0, self.distribution.n)
        q: Tensor = self(obs, state)[0]
        return q

    def _heads(self, features: Tensor) -> Tensor:
        advantage: Tensor = self.advantage(features)
        return advantage if self.value is None else duel(self.value(features), advantage)

    def greedy(self) -> QNetwork:
        """The same network, with the same weights, that does not explore; for any number of slots.

        Example:
            >>> make_q_network(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), epsilon=(0.4, 0.1)).greedy().distribution
            EpsilonGreedy(n=2, epsilon=0.0, start=0, dtype=dtype('int64'))
        """
        twin = copy.copy(self)
        twin.distribution = dataclasses.replace(self.distribution, epsilon=0.0)
        return twin

    def learn_scale(self, obs: Any) -> None:
        """Take observations with n rows into the running mean and variance, if there is one."""
        self.body.learn_scale(obs)


def duel(value: Tensor, advantage: Tensor) -> Tensor:
    """Q-values [..., A] of the value of a state [..., 1] and the advantages of its choices [..., A].

    Only what distinguishes an advantage from the mean of all counts: what they have in common belongs to the value.

    Example:
        >>> duel(torch.tensor([1.0]), torch.tensor([3.0, 5.0]))
        tensor([0., 2.])
    """
    return value + advantage - advantage.mean(-1, keepdim=True)


def make_q_network(
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    epsilon: float | Sequence[float] = 0.0,
    body: Body = "mlp",
    hidden: Sequence[int] | None = None,
    lstm: int = 0,
    dueling: bool = True,
    normalize: bool = False,
) -> QNetwork:
    """A Q-network for these spaces.

    Two dueling streams have a layer each of their own: the last of `hidden` if there is no memory, and one of the
    memory's size behind it if there is one. So "nature" makes the published networks of Ape-X and R2D2.

    Args:
        observation_space: of one environment.
        action_space: of one environment: Discrete.
        epsilon: how often the workers choose at random: one number, or one for each slot.
        body: "mlp" makes a row of numbers of any observation. "shallow" and "deep" are the two networks of IMPALA for
            images, "nature" that of DQN; what is no image, such as the last action, is put beside their result.
        hidden: sizes of the fully connected layers; None for those that are usual for the body.
        lstm: the size of an LSTM after the body; 0 for none.
        dueling: whether the value of a state and the advantages of the choices are told by two streams.
        normalize: whether observations, apart from images, are normalised by their running mean and variance.

    Raises:
        ConfigError: the spaces do not fit the body, or there are no choices to be told apart.

    Example:
        >>> net = make_q_network(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), lstm=32)
        >>> len(net.state), net.distribution.n
        (2, 2)
    """
    if not isinstance(action_space, spaces.Discrete):
        raise ConfigError(
            f"a Q-network needs a Discrete action space, not {str(action_space)[:200]}: it tells the worth of each "
            "choice. The learners with an actor, such as PPO, take other spaces."
        )
    distribution = EpsilonGreedy(
        int(action_space.n), epsilon=epsilon, start=int(action_space.start), dtype=action_space.dtype
    )
    layers = layers_of(body, hidden, lstm)
    before, stream = layers, layers[:0]
    if dueling:
        before, stream = (layers, (lstm,)) if lstm else (layers[:-1], layers[-1:])
    looks: VectorBody | ImageBody
    if body == "mlp":
        looks = VectorBody(observation_space, before, normalize=normalize, layers=relu_layers)
    else:
        looks = ImageBody(observation_space, body, before, normalize=normalize)
    return QNetwork(looks, distribution, lstm=lstm, dueling=dueling, stream=stream)


def _stream(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    return nn.Sequential(*relu_layers(inputs, hidden), nn.Linear([inputs, *hidden][-1], outputs))
