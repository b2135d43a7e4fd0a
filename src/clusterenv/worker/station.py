"""A station: a block and, while a policy is attached, the actor that plays in it.

Everything that can be asked of a worker by message is a method here, so a worker process and a node without processes
answer alike.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ConfigError
from clusterenv.transport.fragments import Fragments
from clusterenv.transport.weights import WeightBuffer
from clusterenv.worker.actor import Actor
from clusterenv.worker.block import EnvBlock
from clusterenv.worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.transport.arena import Arena
    from clusterenv.transport.fragments import FragmentSpec
    from clusterenv.transport.shared import SharedArrays
    from clusterenv.worker.actor import Attachment, Fragment
    from clusterenv.worker.base import Block, ResetOptions

# What the last step of a row was.
_STEPPED, _BEGUN = 1, 2


class Station:
    """Answers messages.

    Args:
        block: the environments.
        arena: where their rows are.
        worker: which worker of the node this is.
    """

    def __init__(self, block: Block, arena: Arena, worker: int) -> None:
        self._block, self._arena, self._worker = block, arena, worker
        self._actor: Actor | None = None
        self._memory: list[SharedArrays] = []
        self._fragments: SharedArrays | None = None
        # What others have done to the environments since an actor last played: the rows they have stepped (and whether
        # the last step was the reset after an episode), and those that they have reset.
        self._stepped = np.zeros(len(block.slots), dtype=np.int8)
        self._fresh = np.zeros(len(block.slots), dtype=np.bool_)
        self._idle_since: float | None = None  # the end of the last fragment

    def note_step(self, rows: Sequence[int]) -> None:
        """Somebody else steps these rows."""
        # All of them is the usual case, and as a slice four times as fast.
        which: Any = slice(None) if len(rows) == len(self._stepped) else rows
        self._stepped[which], self._fresh[which] = _STEPPED, False
        if begun := self._block.owing(rows):
            self._stepped[begun] = _BEGUN

    def reset(self, rows: Sequence[int], seeds: Sequence[int | None], options: ResetOptions) -> Report:
        """Reset these rows, with one dictionary of options for all of them or a list with one for each."""
        self._fresh[list(rows)] = True
        if not isinstance(options, list):
            return self._block.reset(rows, seeds, options)
        report = Report()
        for row, seed, own in zip(rows, seeds, options, strict=True):
            report.extend(self._block.reset([row], [seed], own))
        return report

    def call(self, rows: Sequence[int], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of these environments."""
        return self._block.call(rows, name, args, kwargs)

    def set_attr(self, rows: Sequence[int], name: str, values: Sequence[Any]) -> None:
        """Set an attribute of these environments."""
        self._block.set_attr(rows, name, values)

    def attach(self, attachment: Attachment, weights: SharedArrays) -> None:
        """Take a policy and the memory of its weights."""
        self.detach()
        if not isinstance(self._block, EnvBlock):
            raise ConfigError("a policy needs environments that are stepped one by one, not a vectorised block.")
        self._memory = [weights]
        self._actor = Actor(self._block, self._arena, self._worker, attachment, WeightBuffer(weights))

    def share(self, spec: FragmentSpec, memory: SharedArrays) -> None:
        """Take the memory for fragments."""
        if self._fragments is not None:
            self._fragments.close()
        self._fragments = memory
        self._attached().share(Fragments(spec, memory))

    def play(self, buffer: int, switch: bool, afresh: bool) -> Fragment:
        """Play one fragment with the policy."""
        actor = self._attached()
        idle_s = 0.0 if self._idle_since is None else time.perf_counter() - self._idle_since
        if self._stepped.any() or self._fresh.any():
            begun, fresh = (self._stepped == _BEGUN).nonzero()[0], self._fresh.nonzero()[0]
            actor.forget(stepped=self._stepped.nonzero()[0], begun=begun, fresh=fresh)
            self._stepped[:] = self._fresh[:] = 0
        fragment = actor.play(buffer, switch=switch, afresh=afresh)
        fragment.idle_s, self._idle_since = idle_s, time.perf_counter()
        return fragment

    def detach(self) -> None:
        """Let the policy and its memory go."""
        if self._actor is not None:
            # The next policy may find these rows as they are now.
            self._fresh |= self._actor.at_beginning() & (self._stepped == 0)
        self._actor = self._idle_since = None
        memory = [*self._memory, *([self._fragments] if self._fragments else [])]
        self._memory, self._fragments = [], None
        for part in memory:
            part.close()

    def close(self) -> None:
        """Close the environments."""
        self.detach()
        self._block.close()

    def _attached(self) -> Actor:
        if self._actor is None:
            raise ConfigError("no policy is attached to this worker.")
        return self._actor
