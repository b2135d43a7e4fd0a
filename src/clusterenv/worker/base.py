"""What a worker, or a node without processes, asks of a block of environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

    from clusterenv.transport.arena import Arena
    from clusterenv.worker.describe import BlockDescription
    from clusterenv.worker.report import Report

    # Of the rows, or slots, that are reset: one dictionary for all of them, or a list with one for each.
    ResetOptions = dict[str, Any] | list[dict[str, Any] | None] | None


class Block(Protocol):
    """The environments of one worker. Rows count from 0 within the block."""

    slots: range
    whole: bool
    """Whether the block can only be stepped as a whole."""

    def describe(self) -> BlockDescription:
        """The spaces and metadata."""

    def bind(self, arena: Arena, worker: int, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Take the rows of this block in the arena."""

    def replace_lost(self, seeds: Sequence[int | None]) -> None:
        """Start as the replacement of a lost block: the first thing each slot does is a reset with these seeds."""

    def actions(self, rows: Sequence[int]) -> list[Any]:
        """The actions of these rows in the arena."""

    def step(self, rows: Sequence[int], actions: Sequence[Any]) -> Report:
        """Step these rows once, each with its action."""

    def owing(self, rows: Sequence[int]) -> list[int]:
        """Those of these rows whose next step is a reset, as far as that is known."""

    def reset(self, rows: Sequence[int], seeds: Sequence[int | None], options: dict[str, Any] | None) -> Report:
        """Reset these rows, each with its seed."""

    def call(self, rows: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of these environments, or read an attribute."""

    def set_attr(self, rows: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of these environments."""

    def close(self) -> None:
        """Close every environment; never raises."""
