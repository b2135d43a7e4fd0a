"""What a node knows about one of its workers, and the words they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.transport.arena import Command, Word

if TYPE_CHECKING:
    from clusterenv.transport.arena import Arena
    from clusterenv.transport.channel import Channel

_MASK = 0x7FFFFFFF


class WorkerHandle:
    """One worker: its process (by token), its channel and its control words."""

    channel: Channel

    def __init__(self, worker: int, slots: range) -> None:
        self.worker, self.slots = worker, slots
        self.token = 0
        self.frames = 0
        self.lost = False
        self.starting = False
        self.bound = False
        self.fresh_seeds: tuple[int | None, ...] | None = None
        self._request = 0

    def renew(self, channel: Channel) -> None:
        """A fresh process takes the place of the one before."""
        self.channel = channel
        self.lost = self.starting = self.bound = False

    def bind(self, arena: Arena, *, spare_core: bool) -> None:
        """Take the worker's control words."""
        worker = self.worker
        self._words = arena.words
        self._go, self._command = arena.word(worker, Word.GO), arena.word(worker, Word.COMMAND)
        self._done, self._frames = arena.word(worker, Word.DONE), arena.word(worker, Word.FRAMES)
        self._slot, self._writing = arena.word(worker, Word.SLOT), arena.word(worker, Word.WRITING)
        self._spin = spare_core
        self._asked = arena.signal(worker, Word.GO, Word.SLEEPS, spare_core=spare_core)
        self._answer = arena.signal(worker, Word.DONE, Word.HEAD_SLEEPS, spare_core=spare_core)
        # A fresh worker starts where the last one stopped: nothing asked, nothing answered.
        self._words[self._done] = self._request
        self._words[self._go] = self._request
        self._words[self._frames] = self.frames & _MASK
        self._words[arena.word(worker, Word.SLEEPS)] = 0
        self._words[self._slot] = self._words[self._writing] = -1
        self.bound = True

    def ask(self, command: Command) -> None:
        """Ask for something, by a new request number. `wake` must follow, after a `fence`."""
        self._request = (self._request + 1) & _MASK
        self._words[self._command] = command
        self._words[self._go] = self._request

    def wake(self) -> None:
        """Wake the worker if it sleeps."""
        self._asked.wake()

    def answered(self, limit_s: float) -> bool:
        """Whether the last request is answered; wait for it at most `limit_s`."""
        done = self._words[self._done]
        if done == self._request:
            return True
        # Without a spare core the head sleeps at once: every core is needed by the workers that it waits for.
        self._answer.wait_while(done, limit_s, spin=self._spin)
        return bool(self._words[self._done] == self._request)

    def busy(self) -> bool:
        """Whether a request is under way."""
        return self.bound and not self.lost and self._words[self._done] != self._request

    def announced(self) -> bool:
        """Whether the worker has announced a message that we have not read."""
        return self.bound and not self.lost and bool(self._words[self._frames] != self.frames & _MASK)

    def position(self) -> tuple[int | None, int | None]:
        """The slot being stepped and the slot whose row is being written, if any."""
        if not self.bound:
            return None, None
        slot, writing = self._words[self._slot], self._words[self._writing]
        return (None if slot < 0 else slot), (None if writing < 0 else writing)

    def where(self) -> str:
        """The place of a worker that does not answer, for a message."""
        slot, _ = self.position()
        return "" if slot is None else f" (in slot {slot})"

    def close(self) -> None:
        """Close the channel."""
        if hasattr(self, "channel"):
            self.channel.close()
