"""The losses of SAC. Pure functions of tensors over n transitions; the two Q functions come as [2, n].

`logp` is the log-density of an action in units in which every dimension has the bounds -1 and 1, so that a temperature
and a wanted entropy mean the same whatever the bounds are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def soft_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_logp: Tensor, temperature: Tensor) -> Tensor:
    """What the Q functions are to say, [n]: the reward and what the next state is worth, its entropy included.

    The lesser of two Q functions counts, because the policy looks for actions that seem good, and finds their errors.

    Args:
        reward: [n].
        discount: [n]; 0 where the episode terminated, so that nothing is counted on there.
        next_q: [2, n], of the target networks, of actions that the policy draws in the next state.
        next_logp: [n], of these actions.
        temperature: what a nat of entropy is worth in reward.

    Example:
        >>> import torch
        >>> one = torch.ones(1)
        >>> soft_target(one, 0.5 * one, torch.tensor([[4.0], [6.0]]), -2 * one, torch.tensor(0.5))
        tensor([3.5000])
    """
    return reward + discount * (next_q.amin(0) - temperature * next_logp)


def critic_loss(q: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Half the weighted mean squared error, of both Q functions together.

    Args:
        q: [2, n].
        target: [n], a constant.
        weights: [n], for transitions that were not drawn with equal chances.

    Example:
        >>> import torch
        >>> critic_loss(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0]), torch.ones(1))
        tensor(2.5000)
    """
    return 0.5 * ((q - target).square() * weights).sum(0).mean()


def actor_loss(q: Tensor, logp: Tensor, temperature: Tensor) -> Tensor:
    """What the policy loses: worth of its actions, and entropy.

    Args:
        q: [2, n], of actions that the policy drew; gradients flow through the actions.
        logp: [n], of these actions.
        temperature: a constant.

    Example:
        >>> import torch
        >>> actor_loss(torch.tensor([[4.0], [6.0]]), torch.tensor([-2.0]), torch.tensor(0.5))
        tensor(-5.)
    """
    return (temperature * logp - q.amin(0)).mean()


def temperature_loss(log_temperature: Tensor, logp: Tensor, target_entropy: float) -> Tensor:
    """Lets the temperature rise while the entropy is less than wanted, and fall while it is more.

    Its gradient by the logarithm of the temperature is entropy - target_entropy, however small the temperature has
    become.

    Args:
        log_temperature: what is learned.
        logp: [n], of actions that the policy drew; a constant.
        target_entropy: in nats.

    Example:
        >>> import torch
        >>> log_temperature = torch.zeros((), requires_grad=True)
        >>> temperature_loss(log_temperature, torch.tensor([3.0]), target_entropy=-1.0).backward()
        >>> log_temperature.grad
        tensor(-2.)
    """
    return -(log_temperature * (logp.detach() + target_entropy).mean())
