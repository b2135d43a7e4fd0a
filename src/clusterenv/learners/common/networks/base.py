"""What every network offers to a learner."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from clusterenv.learners.common import trees

if TYPE_CHECKING:
    from typing_extensions import Self

    from clusterenv.policy.protocol import Distribution
    from clusterenv.spaces import Leaf

    State = tuple[Tensor, ...]


class Unrolled(NamedTuple):
    """What a network says about a batch of T steps of N slots.

    Attributes:
        params: [T + 1, N, P], the parameters of the action distribution at every observation.
        value: [T + 1, N]; of a critic with a value for each task, [T + 1, N, tasks].
        final_value: [K] or [K, tasks], of the last observations of the episodes that ended. It is what a target is made
            of, so no gradient flows through it.
    """

    params: Tensor
    value: Tensor
    final_value: Tensor


class Network(nn.Module):
    """An actor and a critic. Values are [n], or [n, tasks] if the critic tells one for each of several tasks.

    A subclass gives `forward`, and `unroll` too if it has a memory.

    Attributes:
        distribution: how actions follow from the parameters.
        state: the recurrent state of one slot, zeros at the start of an episode; () if there is none.
        critic: makes values of features; None in the policy alone.
    """

    distribution: Distribution
    state: tuple[Leaf, ...] = ()
    critic: nn.Module | None

    def forward(self, obs: Any, state: State = ()) -> tuple[Tensor, Tensor | None, State]:
        """Observations with n rows, and the state before them -> parameters [n, P], values [n], the state after.

        The policy alone gives None for the values.
        """
        raise NotImplementedError

    def policy_only(self) -> Self:
        """The same network without its critic, for those who only act: the fewer weights, the fewer travel.

        The parts are those of the whole, under the same names: what becomes of one becomes of the other.
        """
        policy = copy.copy(self)
        # Tables of its own: no part is taken out of the whole, and whoever swaps a tensor here does it here alone.
        policy._modules = {**self._modules, "critic": None}
        policy._parameters, policy._buffers = dict(self._parameters), dict(self._buffers)
        return policy

    def values(self, features: Tensor) -> Tensor | None:
        """What the critic makes of features [..., size]: [...], or [..., tasks]; None if there is no critic."""
        return None if self.critic is None else self.critic(features).squeeze(-1)

    def unroll(
        self, obs: Any, state: State, first: Tensor, final_obs: Any, final_at: tuple[Tensor, Tensor]
    ) -> Unrolled:
        """The same for a batch as its parts are: what the actor computed step by step, in a few large calls.

        Args:
            obs: [T + 1, N, ...].
            state: before `obs[0]`, each [N, ...].
            first: [T + 1, N]: where an episode begins. The state is cleared before such an observation.
            final_obs: [K, ...], the last observations of episodes. Those that only terminated have no use for a
                value: a learner may pass a part of them.
            final_at: (t, n), each [K]: after which steps these were seen.
        """
        params, value, _ = self(trees.rows(obs))
        shape = tuple(first.shape)
        return Unrolled(params.unflatten(0, shape), value.unflatten(0, shape), self._final_value(final_obs, (), value))

    @torch.no_grad()
    def _final_value(self, obs: Any, state: State, like: Tensor) -> Tensor:
        """Of n observations, in the form of other values [m] or [m, tasks]."""
        value: Tensor = self(obs, state)[1] if trees.length(obs) else like.new_zeros(0, *like.shape[1:])
        return value

    def parts(self) -> list[list[nn.Parameter]]:
        """The parameters in groups that share nothing: gradients are clipped group by group."""
        return [list(self.parameters())]

    def learn_scale(self, obs: Any) -> None:
        """Take observations with n rows into the running mean and variance, if there is one."""
