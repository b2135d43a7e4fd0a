"""Opening a batch: check the request, start the node, agree on the spaces, lay out the arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from clusterenv.cluster.slots import split
from clusterenv.config import Inproc, Timeouts
from clusterenv.env.agree import Agreed, agree
from clusterenv.env.engine import Engine
from clusterenv.env.infos import DIALECTS, OLD_DIALECT
from clusterenv.errors import ConfigError, ConfigTypeError, unknown
from clusterenv.node.inproc import InprocNode
from clusterenv.node.starting import build_error
from clusterenv.spaces import leaves_of
from clusterenv.transport.arena import Arena, ArenaSpec, check_size
from clusterenv.worker.report import BuildError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gymnasium import Space

    from clusterenv.config import Cluster, OnLoss
    from clusterenv.node.base import Node
    from clusterenv.worker.base import Block

    Builder = Callable[[], Block]


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked request for a batch."""

    cluster: Cluster
    blocks: list[range]
    builders: list[Builder]
    observation_mode: Any
    autoreset_mode: AutoresetMode | None  # None: the blocks reset by themselves and say how
    on_loss: OnLoss
    timeouts: Timeouts


def open_batch(plan: Plan) -> tuple[Engine, Agreed, AutoresetMode]:
    """Start everything, or leave nothing behind and raise."""
    node = _node(plan)
    try:
        descriptions = node.start(plan.timeouts.start_s)
        num_envs = plan.blocks[-1].stop
        first = descriptions[0]
        # Before the spaces are batched, which takes as much memory as the batch.
        check_size(_arena_spec(plan, first.observation_space, first.action_space))
        agreed = agree(descriptions, num_envs, plan.observation_mode)
        arena = Arena.create(_arena_spec(plan, agreed.single_observation_space, agreed.single_action_space))
        node.bind(arena, agreed.single_observation_space, agreed.single_action_space)
    except BuildError as error:
        node.close(0.0)
        raise build_error(error.failure) from error.failure.error
    except BaseException:
        node.close(0.0)
        raise
    mode = plan.autoreset_mode or AutoresetMode(agreed.metadata["autoreset_mode"])
    engine = Engine(node, arena, agreed.single_observation_space, mode, plan.on_loss, plan.timeouts)
    return engine, agreed, mode


def blocks_for(num_envs: int, cluster: Cluster, max_concurrency: object = None) -> list[range]:
    """The slots of each worker."""
    workers = cluster.workers
    if max_concurrency is not None:
        if isinstance(max_concurrency, bool) or not hasattr(type(max_concurrency), "__index__"):
            raise ConfigTypeError(f"`max_concurrency` must be an integer or None, got {type(max_concurrency)}.")
        limit = int(max_concurrency.__index__())  # type: ignore[attr-defined]
        if limit < 1:
            raise ConfigError(f"`max_concurrency` must be a positive or None, got {limit}.")
        workers = min(workers, limit)
    return split(num_envs, workers)


def check_factories(env_fns: object) -> list[Callable[[], Any]]:
    """The factories as a list, or an error that says what is wrong with them."""
    if callable(env_fns) or not hasattr(env_fns, "__iter__"):
        raise ConfigTypeError(
            f"env_fns={env_fns!r} must be a list of functions, one per environment, "
            "as in [lambda: gymnasium.make('CartPole-v1')] * 4."
        )
    factories = list(env_fns)
    if not factories:
        raise ConfigError("env_fns is empty: num_envs must be at least 1.")
    for slot, factory in enumerate(factories):
        if not callable(factory):
            raise ConfigTypeError(
                f"env_fns[{slot}]={factory!r} must be a function that returns an environment, not the environment."
            )
    return factories


def check_autoreset_mode(mode: object) -> AutoresetMode:
    """The mode as Gymnasium's enum; its names and its values are both taken."""
    if isinstance(mode, AutoresetMode):
        return mode
    known = {choice.value: choice for choice in AutoresetMode} | {choice.name: choice for choice in AutoresetMode}
    if not isinstance(mode, str) or mode not in known:
        raise ConfigError(unknown("autoreset_mode", str(mode), [choice.value for choice in AutoresetMode]))
    return known[mode]


def check_timeouts(timeouts: object) -> Timeouts:
    """The limits, or the defaults for None."""
    if timeouts is None:
        return Timeouts()
    if not isinstance(timeouts, Timeouts):
        raise ConfigTypeError(f"timeouts={timeouts!r} must be a clusterenv.Timeouts(...), or None.")
    return timeouts


def check_dialect(infos: object, mode: AutoresetMode | None) -> str:
    """The info dialect. That of Gymnasium 0.29 means nothing without its autoreset, which was in the same step."""
    if infos not in DIALECTS:
        raise ConfigError(unknown("infos dialect", str(infos), DIALECTS))
    if infos == OLD_DIALECT and mode not in (AutoresetMode.SAME_STEP, None):
        raise ConfigError(
            f"infos={infos!r} needs autoreset_mode='SameStep', got {mode.value!r}: otherwise there is no 'final_info' "
            "and a script for Gymnasium 0.29 would see no episode end."
        )
    return str(infos)


def _arena_spec(plan: Plan, observation_space: Space[Any], action_space: Space[Any]) -> ArenaSpec:
    observation, action = leaves_of(observation_space) or (), leaves_of(action_space) or ()
    return ArenaSpec(plan.blocks[-1].stop, len(plan.blocks), tuple(observation), tuple(action))


def _node(plan: Plan) -> Node:
    if isinstance(plan.cluster, Inproc):
        return InprocNode(plan.builders, plan.blocks)
    from clusterenv.node.local import LocalNode  # Linux only; the rest works elsewhere too

    return LocalNode(plan.builders, plan.blocks, plan.cluster)
