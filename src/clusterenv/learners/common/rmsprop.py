"""RMSProp as TensorFlow 1 did it, which the published settings of IMPALA are for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class TensorFlowRMSprop(torch.optim.Optimizer):
    """RMSProp whose mean of squares starts at 1 and whose epsilon is under the root.

    torch's own starts at 0 and adds epsilon outside. With the large epsilons of IMPALA (0.01 to 0.1) and in the first
    hundred steps these are different optimisers for the same numbers.

    Args:
        params: what to optimise.
        lr: learning rate.
        alpha: how much of the mean of squares stays at each step.
        eps: added to it under the root.
        momentum: share of the last step that is taken again.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(()))
        >>> optimizer = TensorFlowRMSprop([weight], lr=0.1, alpha=0.75, eps=0.0)
        >>> weight.grad = torch.tensor(5.0)
        >>> optimizer.step()  # 0.75 x 1 + 0.25 x 25 = 7
        >>> round(1 - weight.item(), 4), round(0.1 * 5 / 7**0.5, 4)
        (0.189, 0.189)
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        alpha: float = 0.99,
        eps: float = 0.01,
        momentum: float = 0.0,
    ) -> None:
        if not (lr >= 0 and eps >= 0 and 0 <= alpha <= 1 and 0 <= momentum < 1):
            raise ConfigError(
                f"lr={lr!r} and eps={eps!r} must be at least 0, alpha={alpha!r} from 0 to 1, "
                f"and momentum={momentum!r} at least 0 and less than 1."
            )
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change every parameter that has a gradient by one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._change(parameter, parameter.grad, group)
        return loss

    def _change(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["square_avg"] = torch.ones_like(parameter)
            state["momentum_buffer"] = torch.zeros_like(parameter)
        squares, last = state["square_avg"], state["momentum_buffer"]
        squares.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
        # The learning rate is part of what the momentum remembers, so a new one does not change steps already taken.
        # It may be a tensor, which a recorded step reads when it is played back.
        last.mul_(group["momentum"]).add_(gradient / (squares + group["eps"]).sqrt() * group["lr"])
        parameter.sub_(last)
