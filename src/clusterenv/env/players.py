"""The workers while a policy is attached: each gets the policy and the memory for fragments, replacements too."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.env.batch import Piece
from clusterenv.errors import ConfigError, PolicyError
from clusterenv.node.base import Message
from clusterenv.transport.fragments import Fragments
from clusterenv.worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from clusterenv.config import Timeouts
    from clusterenv.env.engine import Engine
    from clusterenv.node.base import Incarnation
    from clusterenv.transport.fragments import FragmentSpec
    from clusterenv.transport.shared import SharedArrays
    from clusterenv.worker.actor import Attachment, Fragment
    from clusterenv.worker.loop import Reply

# A waiting head looks this often whether the workers still move.
_LOOK_S = 0.5


class Watch:
    """Finds workers that stand still, by the steps that they count. Time is passed in.

    Args:
        progress: [workers], counted up by the workers.
        limit_s: how long one step of a block may take; None for ever.

    Example:
        >>> progress = np.zeros(2, np.int64)
        >>> watch = Watch(progress, limit_s=10.0)
        >>> watch.stuck([0, 1], now=0.0)
        []
        >>> progress[1] += 1
        >>> watch.stuck([0, 1], now=11.0)
        [0]
    """

    def __init__(self, progress: npt.NDArray[np.int64], limit_s: float | None) -> None:
        self._progress, self._limit_s = progress, limit_s
        self._seen: dict[int, tuple[int, float]] = {}

    def stuck(self, workers: Sequence[int], now: float) -> list[int]:
        """Those of `workers` that have not moved within the limit."""
        late = []
        for worker in workers:
            count = int(self._progress[worker])
            before, since = self._seen.get(worker, (count, now))
            if before != count or worker not in self._seen:
                self._seen[worker] = (count, now)
            elif self._limit_s is not None and now - since > self._limit_s:
                late.append(worker)
        return late

    def forget(self, worker: int) -> None:
        """This worker starts afresh, or rests: its time begins when it is next looked at."""
        self._seen.pop(worker, None)


class Players:
    """Brings policy and memory to the workers, and their fragments back."""

    def __init__(self, engine: Engine, timeouts: Timeouts, attachment: Attachment, weights: SharedArrays) -> None:
        self._engine, self._timeouts = engine, timeouts
        self._attachment, self._weights = attachment, weights
        self._policies: dict[int, Incarnation] = {}  # the incarnation of each worker that has the policy
        self._memories: dict[int, tuple[Incarnation, SharedArrays]] = {}  # and the memory, with that incarnation
        self._equipping: dict[int, float] = {}  # replacements that get both while others play, and since when
        self.everybody = list(range(len(engine.node.blocks)))
        self.restarts = 0
        self._fragments: Fragments | None = None
        self._told: dict[int, int] = {}  # how many steps each worker had counted with the last fragment that is known

    @property
    def fragments(self) -> Fragments:
        """The memory that `prepare` made."""
        if self._fragments is None:
            raise ConfigError("there is no memory for fragments yet; call prepare() first.")
        return self._fragments

    def prepare(self, spec: FragmentSpec) -> None:
        """Make memory for fragments of this kind, unless it is there."""
        before = self._fragments
        if before is not None and before.spec == spec:
            return
        self._fragments = Fragments.create(spec)
        if before is not None:  # only now: a size that is refused leaves everything as it was
            before.close()
        step_s = self._timeouts.step_s
        limit_s = None if step_s is None else step_s + self._engine.node.news_s
        self.watch = Watch(self._fragments.progress, limit_s)

    def begin(self) -> None:
        """Everybody is about to play, and nobody is at it yet."""
        self.fragments.stop[:] = 0
        self._told = dict(enumerate(self.fragments.progress.tolist()))

    def equip(self) -> list[int]:
        """Give every worker what it does not have yet. Workers lost on the way are replaced, or raise.

        Returns:
            Those that were given the policy.
        """
        engine, node = self._engine, self._engine.node
        equipped: set[int] = set()
        while True:
            before = {worker: node.incarnation(worker) for worker in self.everybody}
            if not engine.recovery.elastic:
                engine.recovery.finish()
            now = {worker: node.incarnation(worker) for worker in self.everybody}
            for worker in self.everybody:
                if now[worker] != before[worker]:  # lost and replaced while we waited for others
                    engine.gather.lose(node.blocks[worker], reported=True)
            without_policy, without_memory = self._unequipped()
            if not without_policy and not without_memory:
                return sorted(equipped)
            equipped |= set(without_policy)
            for worker in self._lend_and_wait(without_policy, "attach"):
                self._policies[worker] = now[worker]
            for worker in self._lend_and_wait(without_memory, "share"):
                self._memories[worker] = (now[worker], self.fragments.memory)
            self.replace_lost()

    def _unequipped(self) -> tuple[list[int], list[int]]:
        """Those that are here without the policy, and those without the memory."""
        here = {w: self._engine.node.incarnation(w) for w in self.everybody if self._engine.recovery.is_here(w)}
        without_policy = [worker for worker, life in here.items() if self._policies.get(worker) != life]
        memory = self.fragments.memory
        with_memory = {worker for worker, life in here.items() if self._memories.get(worker) == (life, memory)}
        # Who gets the policy anew forgets the memory.
        return without_policy, [w for w in here if w in without_policy or w not in with_memory]

    def equip_replacements(self) -> list[int]:
        """Bring policy and memory to replacements that are built by now; nobody is waited for.

        Returns:
            Those that have both now, and can play.
        """
        node = self._engine.node
        for worker in self._engine.recovery.arrived():
            self._lend([worker], "attach")
            self._equipping[worker] = time.monotonic()
        back = []
        for worker, reply in (node.replies(list(self._equipping), 0.0) if self._equipping else {}).items():
            self._check_taken(worker, reply)
            life = node.incarnation(worker)
            if self._policies.get(worker) != life:
                self._policies[worker] = life
                self._lend([worker], "share")
            else:
                self._memories[worker] = (life, self.fragments.memory)
                del self._equipping[worker]
                back.append(worker)
        self._lose_unequipped()
        return back

    @property
    def replacement_pending(self) -> bool:
        """Whether a replacement is on its way."""
        return bool(self._equipping) or self._engine.recovery.missing

    def _lose_unequipped(self) -> None:
        limit_s = self._timeouts.start_s
        for worker, since in list(self._equipping.items()):
            if limit_s is not None and time.monotonic() - since > limit_s:
                self._engine.node.lose(worker, f"it did not take the policy within {limit_s} s")
            if not self._engine.node.alive(worker):
                del self._equipping[worker]

    def forget_replacements(self) -> None:
        """The stream ends: who was being equipped gets everything anew when it is next needed."""
        waiting = [worker for worker in self._equipping if self._engine.node.alive(worker)]
        self._equipping.clear()
        self._engine.node.replies(waiting, self._timeouts.call_s)
        for worker in waiting:
            self._policies.pop(worker, None)

    def begins_afresh(self, worker: int) -> bool:
        """Whether a worker has taken the place of a lost one, and its slots were neither played nor reset since."""
        return self._engine.gather.any_broken_of(self._engine.node.blocks[worker])

    def wait(self, workers: Sequence[int]) -> dict[int, Reply]:
        """The replies of these workers to `play`, from all that are not lost on the way."""
        node = self._engine.node
        replies: dict[int, Reply] = {}
        for worker in workers:
            self.watch.forget(worker)
        while waiting := [w for w in workers if w not in replies and node.alive(w)]:
            replies.update(node.replies(waiting, _LOOK_S))
            self.lose_stuck([worker for worker in waiting if worker not in replies])
        return replies

    def lose_stuck(self, workers: Sequence[int]) -> None:
        """End those that stand still for too long."""
        for worker in self.watch.stuck(workers, time.monotonic()):
            self._engine.node.lose(worker, f"it has not finished a step within {self._timeouts.step_s} s")

    def replace_lost(self) -> list[int]:
        """Start replacements for workers that were lost, or raise WorkerLost. Returns them."""
        lost = []
        for loss in self._engine.recovery.note_losses(asked=False):
            self._engine.recovery.go_on_or_raise(loss, self._step_of(loss.worker))
            self._told[loss.worker] = int(self.fragments.progress[loss.worker])
            self.watch.forget(loss.worker)
            self._equipping.pop(loss.worker, None)  # the first reply of its successor answers something else
            self.restarts += 1
            lost.append(loss.worker)
        return lost

    def _step_of(self, worker: int) -> int | None:
        """Which step a worker is in, counted from 1 after the last fragment of it; None if its count may be old."""
        if self._engine.node.news_s:
            return None
        return int(self.fragments.progress[worker]) - self._told.get(worker, 0) + 1

    def piece(self, worker: int, reply: Reply) -> tuple[Piece, Fragment]:
        """A fragment as a piece of a batch. Errors of the policy and of environments are raised."""
        if reply.error:
            raise PolicyError(f"the policy failed on worker {worker}:\n{reply.error}")
        fragment: Fragment = reply.value
        if fragment.failures:
            self._engine.recovery.check_failures(Report(failures=fragment.failures))
        self._told[worker] = self._told.get(worker, 0) + fragment.steps
        slots = self._engine.node.blocks[worker]
        afresh = self.begins_afresh(worker)
        # The break is shown by `worker_lost`; a later step must not show it again.
        self._engine.gather.mend(range(slots.start, slots.stop))
        columns = self.fragments.columns(fragment.buffer, slots)
        return Piece(worker, columns, np.arange(slots.start, slots.stop), afresh), fragment

    def stop(self) -> None:
        """Whoever plays stops after the step that it is in."""
        if self._fragments is not None:
            self._engine.node.halt(self._fragments)

    def dismiss(self) -> None:
        """Take policy and memory from the workers again; a replacement that has neither is left alone."""
        node = self._engine.node
        having = [w for w, which in self._policies.items() if node.alive(w) and node.incarnation(w) == which]
        self._policies.clear()  # first: who still has it after an interrupt is not known, and gets it anew
        node.post({worker: Message("detach", ()) for worker in having})
        node.replies(having, self._timeouts.call_s)

    def close(self) -> None:
        """Let the memory go."""
        if self._fragments is not None:
            self._fragments.close()

    def _lend(self, workers: Sequence[int], what: str) -> None:
        """Send workers the policy ("attach") or the memory for fragments ("share")."""
        if what == "attach":
            message, memory = Message(what, (self._attachment,)), self._weights
        else:
            message, memory = Message(what, (self.fragments.spec,)), self.fragments.memory
        self._engine.node.lend(dict.fromkeys(workers, message), memory)

    def _lend_and_wait(self, workers: Sequence[int], what: str) -> list[int]:
        """As `_lend`, and wait until it is taken. Returns the workers that have; those that are too slow are lost."""
        node, limit_s = self._engine.node, self._timeouts.start_s
        wanted = [worker for worker in workers if node.alive(worker)]
        node.wait(wanted, limit_s)  # one that is still busy with an interrupted call would mix up the two messages
        self._lend(wanted, what)
        replies: dict[int, Any] = node.replies(wanted, limit_s)
        for worker in wanted:
            if worker not in replies and node.alive(worker):
                node.lose(worker, f"it did not take the policy within {limit_s} s")
        for worker, reply in replies.items():
            self._check_taken(worker, reply)
        return list(replies)

    def _check_taken(self, worker: int, reply: Reply) -> None:
        if reply.error:
            raise PolicyError(f"the policy could not be set up on worker {worker}:\n{reply.error}")
