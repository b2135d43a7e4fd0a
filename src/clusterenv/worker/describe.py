"""What a block is: spaces and metadata, as the head needs them to build the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gymnasium
    from gymnasium import Space


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
