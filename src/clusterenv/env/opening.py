"""Opening a batch: check the request, start the node, agree on the spaces, lay out the arena."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from clusterenv.cluster.slots import split
from clusterenv.clusters import Remote
from clusterenv.config import Inproc, Timeouts
from clusterenv.env.agree import Agreed, agree
from clusterenv.env.engine import Engine
from clusterenv.env.infos import DIALECTS, OLD_DIALECT
from clusterenv.errors import ConfigError, ConfigTypeError, unknown
from clusterenv.node.inproc import InprocNode
from clusterenv.node.starting import build_error
from clusterenv.spaces import leaves_of
from clusterenv.transport.arena import Arena, ArenaSpec, check_size
from clusterenv.wire.envs import BuildOrder
from clusterenv.worker.block import EnvBlock
from clusterenv.worker.report import EnvFailed
from clusterenv.worker.vector_block import VectorBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium import Space

    from clusterenv.config import Cluster, Local, OnLoss
    from clusterenv.node.base import Node
    from clusterenv.worker.base import Block

    Builder = Callable[[], Block]


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked request for a batch."""

    cluster: Cluster
    num_envs: int
    node: Callable[[], Node]
    observation_mode: Any
    autoreset_mode: AutoresetMode | None  # None: the blocks reset by themselves and say how
    on_loss: OnLoss
    timeouts: Timeouts


def open_batch(plan: Plan) -> tuple[Engine, Agreed, AutoresetMode]:
    """Start everything, or leave nothing behind and raise."""
    node = plan.node()
    try:
        descriptions = node.start(plan.timeouts.start_s)
        workers, first = len(node.blocks), descriptions[0]
        # Before the spaces are batched, which takes as much memory as the batch.
        check_size(_arena_spec(plan, workers, first.observation_space, first.action_space))
        agreed = agree(descriptions, plan.num_envs, plan.observation_mode)
        mode = plan.autoreset_mode or _mode_of_blocks(agreed.metadata)
        arena = Arena.create(_arena_spec(plan, workers, agreed.single_observation_space, agreed.single_action_space))
        node.bind(arena, agreed.single_observation_space, agreed.single_action_space)
    except EnvFailed as error:
        node.close(0.0)
        raise build_error(error.failure) from error.failure.error
    except BaseException:
        node.close(0.0)
        raise
    engine = Engine(node, arena, agreed.single_observation_space, mode, plan.on_loss, plan.timeouts)
    return engine, agreed, mode


def blocks_for(num_envs: int, cluster: Inproc | Local, max_concurrency: object = None) -> list[range]:
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


def _mode_of_blocks(metadata: Mapping[str, Any]) -> AutoresetMode:
    try:
        return check_autoreset_mode(metadata["autoreset_mode"])
    except ConfigError as error:
        raise ConfigError(f"the metadata of the vectorised environments has an {error}") from None


def check_timeouts(timeouts: object) -> Timeouts:
    """The limits, or the defaults for None."""
    if timeouts is None:
        return Timeouts()
    if not isinstance(timeouts, Timeouts):
        raise ConfigTypeError(f"timeouts={timeouts!r} must be a clusterenv.Timeouts(...), or None.")
    return timeouts


def check_dialect(infos: object, mode: AutoresetMode | None) -> str:
    """The info dialect. That of Gymnasium 0.29 means nothing without its autoreset, which was in the same step.

    `mode` is None for vectorised blocks.
    """
    if infos not in DIALECTS:
        raise ConfigError(unknown("infos dialect", str(infos), DIALECTS))
    if infos != OLD_DIALECT:
        return str(infos)
    if mode is None:
        raise ConfigError(
            f"infos={infos!r} cannot be had of vectorised blocks, which write infos themselves. Leave infos= out, or "
            "make a batch of single environments."
        )
    if mode is not AutoresetMode.SAME_STEP:
        raise ConfigError(
            f"infos={infos!r} needs autoreset_mode='SameStep', got {mode.value!r}: otherwise there is no 'final_info' "
            "and a script for Gymnasium 0.29 would see no episode end."
        )
    return str(infos)


def _arena_spec(plan: Plan, workers: int, observation_space: Space[Any], action_space: Space[Any]) -> ArenaSpec:
    observation, action = leaves_of(observation_space) or (), leaves_of(action_space) or ()
    return ArenaSpec(plan.num_envs, workers, tuple(observation), tuple(action))


def env_node(
    factories: Sequence[Callable[[], Any]],
    cluster: Cluster,
    mode: AutoresetMode,
    max_concurrency: object,
    *,
    rebuild: bool,
) -> Callable[[], Node]:
    """What makes the node for environments that are stepped one by one. Nothing is started yet."""
    if isinstance(cluster, Remote):
        return _remote_node(factories, cluster, mode, max_concurrency, rebuild=rebuild)
    blocks = blocks_for(len(factories), cluster, max_concurrency)
    builders = [functools.partial(EnvBlock, factories[b.start : b.stop], b, mode, rebuild=rebuild) for b in blocks]
    return _node_here(cluster, builders, blocks)


def block_node(factory: Callable[[int], Any], num_envs: int, cluster: Cluster) -> Callable[[], Node]:
    """What makes the node for vectorised environments, one per worker."""
    if isinstance(cluster, Remote):
        raise ConfigError(
            f"cluster={cluster.text!r}: vectorised environments run on this host only so far. Use cluster='local', or "
            "leave vectorization_mode out."
        )
    blocks = blocks_for(num_envs, cluster)
    return _node_here(cluster, [functools.partial(VectorBlock, factory, slots) for slots in blocks], blocks)


def _node_here(cluster: Inproc | Local, builders: Sequence[Builder], blocks: list[range]) -> Callable[[], Node]:
    if isinstance(cluster, Inproc):
        return functools.partial(InprocNode, builders, blocks)

    def local() -> Node:
        from clusterenv.node.local import LocalNode  # Linux only; the rest works elsewhere too

        return LocalNode(builders, blocks, cluster)

    return local


def _remote_node(
    factories: Sequence[Any], cluster: Remote, mode: AutoresetMode, max_concurrency: object, *, rebuild: bool
) -> Callable[[], Node]:
    """Other hosts get the names of environments, never code: what has no name cannot go there."""
    if max_concurrency is not None:
        raise ConfigError(f"max_concurrency={max_concurrency!r} is for this host; on other hosts set workers=.")
    recipes: list[Any] = []
    of_slot: list[int] = []
    modules = dict.fromkeys(cluster.imports)
    for slot, factory in enumerate(factories):
        if not hasattr(factory, "recipe"):
            raise ConfigError(
                f"env_fns[{slot}]={factory!r} cannot go to cluster={cluster.text!r}: other hosts get the name of an "
                "environment, never code. Register it in a module, and pass make_vec('module:Id-v0', ...)."
            )
        module, recipe = factory.recipe()
        if module:
            modules[module] = None
        if not recipes or recipes[-1] != recipe:
            recipes.append(recipe)
        of_slot.append(len(recipes) - 1)
    where = dataclasses.replace(cluster, imports=tuple(modules))
    order = BuildOrder(recipes, of_slot, mode, rebuild, where.worker_memory)

    def remote() -> Node:
        from clusterenv.node.remote import RemoteNode

        return RemoteNode(order, len(factories), where)

    return remote
