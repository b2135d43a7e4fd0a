"""From the descriptions of the blocks to the spaces of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gymnasium import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from clusterenv.errors import ConfigError, ConfigTypeError, SpaceMismatch
from clusterenv.spaces import leaves_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.worker.describe import BlockDescription

ObservationMode = str | tuple[Space[Any], Space[Any]]


class Agreed(NamedTuple):
    """What every environment of the batch shares."""

    single_observation_space: Space[Any]
    observation_space: Space[Any]
    single_action_space: Space[Any]
    action_space: Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None


def check_observation_mode(mode: object) -> ObservationMode:
    """Return the mode, or raise: "same", "different", or (batched space, single space)."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            kinds = " and ".join(type(space).__name__ for space in mode)
            raise ConfigTypeError(f"Expected both elements of observation_mode to be Spaces, got {kinds}.")
        return mode[0], mode[1]
    if mode not in ("same", "different"):
        raise ConfigError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )
    return str(mode)


def agree(blocks: Sequence[BlockDescription], num_envs: int, mode: ObservationMode) -> Agreed:
    """The spaces of the batch, or SpaceMismatch if the environments do not fit together."""
    first = blocks[0]
    single, action = first.observation_space, first.action_space
    if leaves_of(action) == []:
        raise SpaceMismatch(
            f"the action space {action} has no parts, so there is nothing to act with. Give it at least one."
        )
    if isinstance(mode, tuple):
        batched, single = mode
    elif mode == "same":
        batched = batch_space(single, num_envs)
    else:
        each = [space for block in blocks for space in block.observation_spaces()]
        try:
            batched = batch_differing_spaces(each)
        except (AssertionError, TypeError, ValueError) as error:
            raise SpaceMismatch(f"the observation spaces cannot be batched: {error}") from error
    for block in blocks:
        for slot, observation_space, action_space in (
            (block.slots.start, block.observation_space, block.action_space),
            *block.others,
        ):
            _check_one(slot, observation_space, single, mode)
            if action_space != action:
                raise SpaceMismatch(
                    f"the action space of slot {slot}, {action_space}, differs from that of slot 0, {action}. "
                    "All environments of a batch need the same action space."
                )
    return Agreed(single, batched, action, batch_space(action, num_envs), dict(first.metadata), first.render_mode)


def _check_one(slot: int, space: Space[Any], single: Space[Any], mode: ObservationMode) -> None:
    if mode == "same":
        if space != single:
            raise SpaceMismatch(
                f"the observation space of slot {slot}, {space}, differs from that of slot 0, {single}. "
                "If that is intended, pass observation_mode='different'."
            )
    elif not is_space_dtype_shape_equiv(space, single):
        raise SpaceMismatch(
            f"the observation space of slot {slot}, {space}, does not share the shape and dtype of {single}."
        )
