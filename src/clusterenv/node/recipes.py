"""How a node builds environments that the head asks for: from names that this host knows, never from code."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium

from clusterenv.errors import ConfigError, ProtocolError
from clusterenv.wire.envs import BuildOrder, Recipe, recipe_from_data
from clusterenv.worker.block import EnvBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gymnasium.envs.registration import EnvSpec

    from clusterenv.worker.base import Block


@dataclass(frozen=True, slots=True)
class RecipeFactory:
    """Makes one environment on a worker of this host. It carries the whole spec: a worker has imported nothing yet."""

    spec: EnvSpec
    recipe: Recipe

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Make the environment and wrap it."""
        env = gymnasium.make(copy.deepcopy(self.spec), **self.recipe.kwargs)
        for wrapper in self.recipe.wrappers:
            env = wrapper(env)
        return env


def builders_of(data: Any, blocks: Sequence[range], imports: Collection[str]) -> list[Callable[[], Block]]:
    """What builds each block, from what the head sent, which is a `BuildOrder` as data.

    Raises:
        ProtocolError: the order makes no sense.
        ConfigError: this host does not know an environment, or was not told to import its module.
    """
    order = BuildOrder.from_data(data)
    factories = [_factory(recipe_from_data(recipe, imports)) for recipe in order.recipes]
    chosen = [factories[index] for index in order.of_slot]
    slots = blocks[-1].stop - blocks[0].start
    if len(chosen) != slots:
        raise ProtocolError(f"the order to build environments is for {len(chosen)} slots, not for {slots}.")
    first = blocks[0].start
    return [
        functools.partial(
            EnvBlock,
            chosen[block.start - first : block.stop - first],
            block,
            order.autoreset_mode,
            rebuild=order.rebuild,
        )
        for block in blocks
    ]


def _factory(recipe: Recipe) -> RecipeFactory:
    spec = gymnasium.registry.get(recipe.env_id.rpartition(":")[2])
    if spec is None:
        raise ConfigError(
            f"this host does not know the environment {recipe.env_id!r}. Install the package that has it here, and "
            "name its module in imports= of the cluster (or --import on the command line of the node)."
        )
    return RecipeFactory(spec, recipe)
