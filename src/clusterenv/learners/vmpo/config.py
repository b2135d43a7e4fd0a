"""The settings of V-MPO."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

from clusterenv.errors import ConfigError
from clusterenv.learners.common.config import LearnerConfig, UnrollConfig, check
from clusterenv.learners.common.tasks import Task, parse_tasks


@dataclass(frozen=True, kw_only=True)
class VMPOConfig(UnrollConfig):
    """Train an agent with on-policy maximum a posteriori policy optimisation.

    Example:
        >>> VMPOConfig(env_id="CartPole-v1").batch_size
        256
    """

    # Every batch should come from the policy of the last generation. A trust region lets one generation move by about
    # `epsilon_kl`; a worker that misses one of a tenth of that acts as good as on-policy.
    aps_threshold: ClassVar[float] = 0.001

    tasks: tuple[str, ...] = ()
    """several tasks for one agent, in place of env_id: each an id and its arguments in one text, such as
    "clusterenv/Recall-v0 delay=2"; env_args are for all of them, and slots are dealt out to them in turn"""
    show_task: bool = False
    """show the policy which task it plays, beside the observation; as published only the value is told"""
    num_envs: int = 8
    """number of environments (slots)"""
    rollout_steps: int = 32
    """steps of each environment in a batch; returns reach to the end of it"""
    total_steps: int = 300_000
    """step budget, over all environments"""
    anneal: bool = False
    """let the learning rates and the entropy bonus fall to zero over the step budget"""
    entropy_coef: float = 0.0
    """weight of an entropy bonus; V-MPO has none of its own"""
    value_coef: float = 1.0
    """weight of the value loss"""
    max_grad_norm: float = 10.0
    """a longer gradient is cut to this"""

    passes: int = 1
    """gradient steps on each batch; 1 as published, more learn more from fewer steps"""
    target_period: int = 10
    """batches between two generations of the policy that acts; with 1, and one pass, the trust region never acts"""
    top_share: float = 0.5
    """share of the transitions, those with the largest advantages, that the policy learns from"""
    epsilon_temperature: float = 0.1
    """how far the weights of these may be from equal ones, in nats; it sets the temperature"""
    epsilon_kl: float = 0.01
    """how far the policy may move from the one that acted, in nats; for continuous actions, its mean"""
    epsilon_spread: float = 1e-4
    """the same for the spread of continuous actions: small, or the policy stops exploring"""
    temperature: float = 1.0
    """at the start"""
    kl_multiplier: float = 1.0
    """weight of the trust region at the start"""
    multiplier_rate: float = 1e-2
    """learning rate of the temperature and the multipliers; the published 1e-4 takes tens of thousands of updates"""
    popart: bool = True
    """normalise the value's targets by their running mean and deviation (PopArt), and the advantages by the latter"""
    popart_rate: float = 0.05
    """how far these move at every batch"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("passes", "target_period"):
            check(name, getattr(self, name), least=1)
        check("top_share", self.top_share, above=0, most=1)
        check("popart_rate", self.popart_rate, above=0, most=1)
        for name in (
            *("epsilon_temperature", "epsilon_kl", "epsilon_spread"),
            *("temperature", "kl_multiplier", "multiplier_rate"),
        ):
            check(name, getattr(self, name), above=0)
        self._check_tasks()

    def all_tasks(self) -> tuple[Task, ...]:
        """What the slots play, in turn."""
        if not self.tasks:
            return super().all_tasks()
        tasks = parse_tasks(self.tasks, self.env_kwargs())
        shown = [self._showing(number) for number in range(len(tasks))] if self.show_task else [()] * len(tasks)
        return tuple(task._replace(wrappers=(*self.wrappers(), *more)) for task, more in zip(tasks, shown, strict=True))

    def _showing(self, number: int) -> tuple[functools.partial[Any]]:
        from clusterenv.wrappers import ShowTask  # it needs Gymnasium, which `--help` does not

        return (functools.partial(ShowTask, task=number, tasks=len(self.tasks)),)

    def _check_tasks(self) -> None:
        if not self.tasks:
            if self.show_task:
                raise ConfigError("show_task means nothing without tasks. Leave it out, or name several tasks.")
            return
        parse_tasks(self.tasks)
        if len(self.tasks) == 1:
            raise ConfigError(f"tasks={self.tasks} is one task. Name it with env_id and env_args, or add others.")
        if self.env_id != LearnerConfig.env_id:
            raise ConfigError(
                f"env_id={self.env_id!r} and tasks={self.tasks} cannot both be given. Leave env_id out, or make it one "
                "of the tasks."
            )
        if self.num_envs < len(self.tasks):
            raise ConfigError(
                f"num_envs={self.num_envs} is less than the {len(self.tasks)} tasks: every task needs a slot. Raise "
                "num_envs, best to a multiple of the tasks."
            )
        if self.target_return is not None:
            raise ConfigError(
                f"target_return={self.target_return} with tasks: returns of different tasks have no common unit. Leave "
                "it out."
            )
