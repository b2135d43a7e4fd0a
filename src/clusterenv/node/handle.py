"""What a node knows about one of its workers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from clusterenv.transport.channel import ChannelClosed

if TYPE_CHECKING:
    from clusterenv.transport.channel import Channel
    from clusterenv.worker.loop import Reply


class WorkerHandle:
    """One worker: its process (by token), its channel, and where it stands in its life."""

    channel: Channel

    def __init__(self, worker: int, slots: range) -> None:
        self.worker, self.slots = worker, slots
        self.token = 0
        self.lost = False
        self.started_s: float | None = None  # since when a replacement builds its environments
        self.bound = False  # it has the arena
        self.fresh_seeds: tuple[int | None, ...] | None = None
        self.reply: Reply | None = None  # read, but not yet taken by whoever asked
        self.played: list[Reply] = []  # fragments of a stream, read but not yet taken

    def renew(self, channel: Channel, token: int) -> None:
        """A fresh process takes the place of the one before."""
        self.channel, self.token = channel, token
        self.lost = self.bound = False
        self.started_s = None
        self.reply, self.played = None, []

    def push(self) -> None:
        """Send more of a set-up that was too large for the socket."""
        with contextlib.suppress(ChannelClosed):  # whoever reads from it sees that, too
            self.channel.push()

    def close(self) -> None:
        """Close the channel."""
        if hasattr(self, "channel"):
            self.channel.close()
