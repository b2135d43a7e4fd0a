"""What a block is: spaces and metadata, as the head needs them to build the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

# In place of the name of a method: asks a block for the `wrapper_classes` of its environments.
WRAPPER_CLASSES = "_wrapper_classes"


@dataclass(frozen=True, slots=True)
class BlockDescription:
    """The spaces and metadata of a block.

    Attributes:
        slots: the slots of the block.
        observation_space: of the first environment.
        action_space: of the first environment.
        metadata: of the first environment.
        render_mode: of the first environment.
        others: (slot, observation space, action space) of environments whose spaces differ from the first's.
    """

    slots: range
    observation_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    others: tuple[tuple[int, Space[Any], Space[Any]], ...] = ()

    def observation_spaces(self) -> list[Space[Any]]:
        """The observation space of every slot."""
        different = {slot: space for slot, space, _ in self.others}
        return [different.get(slot, self.observation_space) for slot in self.slots]


def describe_envs(envs: Sequence[gymnasium.Env[Any, Any]], slots: range) -> BlockDescription:
    """Describe a list of environments, one per slot."""
    first = envs[0]
    others = tuple(
        (slot, env.observation_space, env.action_space)
        for slot, env in zip(slots, envs, strict=True)
        if env.observation_space != first.observation_space or env.action_space != first.action_space
    )
    return BlockDescription(
        slots, first.observation_space, first.action_space, dict(first.metadata), first.render_mode, others
    )


def wrapper_classes(env: Any) -> list[str]:
    """The classes of an environment's wrappers, and those that they are derived from, by name.

    Example:
        >>> env = gymnasium.wrappers.TimeLimit(gymnasium.Env(), 5)
        >>> class_name(gymnasium.Wrapper) in wrapper_classes(env)
        True
    """
    names: set[str] = set()
    while isinstance(env, gymnasium.Wrapper):
        names.update(class_name(kind) for kind in type(env).__mro__)
        env = env.env
    return sorted(names)


def class_name(kind: type) -> str:
    """The name of a class with that of its module: classes themselves do not travel between hosts."""
    return f"{kind.__module__}.{kind.__qualname__}"
