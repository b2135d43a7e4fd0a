"""The head's engine: turns calls on the batch into requests to the node and brings their answers back.

`ClusterEnv` checks what the user passes and shapes what the user gets; this class makes it happen.
"""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import NoAsyncCallError

from clusterenv.cluster.gather import Gather
from clusterenv.env.infos import rows_of
from clusterenv.env.observations import Observations
from clusterenv.env.recovery import Recovery, reset_messages
from clusterenv.errors import ResultError
from clusterenv.node.base import Message
from clusterenv.transport.arena import Command
from clusterenv.transport.uninterrupted import uninterrupted
from clusterenv.worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt
    from gymnasium import Space
    from gymnasium.vector import AutoresetMode

    from clusterenv.config import OnLoss, Timeouts
    from clusterenv.node.base import Incarnation, Node
    from clusterenv.transport.arena import Arena
    from clusterenv.worker.base import ResetOptions
    from clusterenv.worker.loop import ObjectActions, Reply

    Slots = npt.NDArray[np.intp]

# `recv` looks this often whether the workers still live.
_LOOK_S = 0.05


class Engine:
    """Requests and answers of one batch."""

    def __init__(
        self,
        node: Node,
        arena: Arena,
        observation_space: Space[Any],
        autoreset_mode: AutoresetMode,
        on_loss: OnLoss,
        timeouts: Timeouts,
    ) -> None:
        self.node, self.arena = node, arena
        self.gather = Gather(node.blocks, arena.want, arena.have)
        self.observations = Observations(observation_space, arena)
        self.recovery = Recovery(node, arena, self.gather, self.observations, autoreset_mode, on_loss, timeouts)
        self._timeouts = timeouts
        self._everybody = list(range(len(node.blocks)))
        self._looked_at = 0.0
        self.first_half_done = True  # of the last call; False: an interrupt came before it had asked everybody
        self._sending: Sequence[int] = ()  # the slots of a `send` that was interrupted before it had asked them all
        self._objects: dict[int, Any] = {}  # the last action of each slot, if no array can hold it
        self._posted: list[int] = []
        self._replies: dict[int, Reply] = {}
        # The reset under way.
        self._resetting: dict[int, int | None] = {}  # the slots that have not answered, with their seeds
        self._reset_seeds: dict[int, int | None] = {}  # all slots of it, with their seeds
        self._reset_by: dict[int, Incarnation] = {}  # the workers that have answered, with their incarnations then
        self._reset_options: ResetOptions = None
        self._reset_report = Report()  # what they have reported

    @property
    def workers_ready(self) -> int:
        """How many workers are not lost, as far as is known."""
        return sum(map(self.node.alive, self._everybody))

    # Lock step.

    def begin_step(self, actions: Sequence[Any] | None) -> None:
        """Ask every slot for a step. The actions are in the arena, or given one per slot if no array can hold them."""
        self._keep_objects(range(self.arena.spec.num_envs), actions)
        self._forget_reported()
        self.recovery.finish()
        command = Command.STEP
        if self.gather.any_broken:
            uninterrupted(self._ask_all)
            self.recovery.answer(self.node.reported)
            command = Command.STEP_SOME
        else:
            self.gather.ask_all()
        self.node.request(command, self._everybody, self._object_actions(range(self.arena.spec.num_envs)))

    def _ask_all(self) -> None:
        """Ask for every slot. Those that are broken are answered as lost: mended and not noted, nobody would see it."""
        broken = self.gather.ask_all()
        if broken is not None:
            self.recovery.note_broken(broken)

    def end_step(self, timeout_s: float | None) -> Report:
        """Wait for every slot and return what was reported.

        Raises:
            multiprocessing.TimeoutError: the user's limit has passed; the step is still under way.
        """
        limit_s = self._timeouts.step_s
        if not self.first_half_done:
            self._ask_again()
        late = self.node.wait(self._everybody, limit_s if timeout_s is None else timeout_s)
        if late and timeout_s is not None:
            raise _timed_out("step_wait", timeout_s)
        for worker in late:
            self.node.lose(worker, f"no answer to a step within {limit_s} s")
        self._collect()
        self.gather.hand_over_all()
        return self.node.reported  # which stays until the next step: after an interrupt this one is asked for again

    def _ask_again(self) -> None:
        """The first half of this step was interrupted: ask those workers that were not asked. None steps twice."""
        if not self.gather.in_flight:
            raise NoAsyncCallError(
                "Calling `step_wait` after a step that was interrupted before it began, or when it was over. "
                "Call `step`, or `reset`.",
                "step",
            )
        # For nobody by name: other hosts that were asked answer first, those that were not never would. Workers here
        # may be asked while they are at work.
        self.node.wait([], self._timeouts.step_s)
        objects = self._object_actions(range(self.arena.spec.num_envs))
        self.node.request(Command.STEP_SOME, self._everybody, objects)
        self.first_half_done = True

    # First come, first served.

    def send(self, slots: Slots, actions: Sequence[Any] | None) -> None:
        """Ask these slots for a step."""
        named: list[int] = slots.tolist()
        self._keep_objects(named, actions)
        if not self.gather.in_flight:
            self._forget_reported()
        self.recovery.finish()
        if self._sending:
            self._send_again()
        self._sending = named
        workers = uninterrupted(self._ask, slots) if self.gather.any_broken else self._ask(slots)
        self.recovery.answer(self.node.reported)
        self.node.request(Command.SEND, workers, self._object_actions(named))
        self._sending = ()

    def _ask(self, slots: Slots) -> list[int]:
        """Ask for slots; returns the workers to wake. Those that are broken are answered as lost."""
        workers, broken = self.gather.ask(slots, time.monotonic())
        self.recovery.note_broken(broken)
        return workers

    def _send_again(self) -> None:
        """The last `send` was interrupted: ask those workers that were not asked. None steps twice."""
        waiting = [slot for slot in self._sending if self._waits(slot)]
        workers = sorted({int(self.gather.worker_of[slot]) for slot in waiting})
        self.node.request(Command.SEND, workers, self._object_actions(waiting))
        self._sending = ()

    def receive(
        self, min_slots: int, full: int, timeout_s: float | None, linger_s: float = 0.0
    ) -> tuple[Slots, Report]:
        """Wait until `min_slots` slots are answered; return at most `full` of them, with their reports.

        When there are `min_slots`, those that are missing to `full` are waited for `linger_s` longer.
        """
        if self._sending:
            self._send_again()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        enough_at = None
        while True:
            self._look_after_workers()
            self.node.listen()  # before looking, so that a ring in between is heard
            ready = self.gather.count_ready()
            left = _LOOK_S if end is None else end - time.monotonic()
            if ready >= min_slots:
                enough_at = time.monotonic() if enough_at is None else enough_at
                left = enough_at + linger_s - time.monotonic()
            if ready >= full or (ready >= min_slots and left <= 0):
                break
            if left <= 0:
                raise multiprocessing.TimeoutError(
                    f"recv: {ready} of min_slots={min_slots} slots were ready within {timeout_s} s. "
                    "Nothing is lost: call recv again."
                )
            self.node.wait_any(left)
        slots = self.gather.ready()[:full]
        self._collect()
        self.gather.hand_over(slots)
        return slots, self._take_reported(set(slots.tolist()))

    def drain(self) -> None:
        """Let everything that is under way come to its end, and throw it away."""
        self._sending = ()
        self._posted = []  # a reply that comes after all is known by its number and dropped
        for worker in self.node.wait(self._everybody, self._timeouts.step_s):
            self.node.lose(worker, f"no answer to a step within {self._timeouts.step_s} s")
        self.node.reports()
        for loss in self.recovery.note_losses(asked=False):
            self.recovery.replace(loss.worker)
        self.recovery.forget_requests()

    # Resets.

    def begin_reset(self, seeds: dict[int, int | None], options: ResetOptions) -> None:
        """Ask these slots for a reset, each with its seed. A list of options has one for every slot of the batch."""
        self.drain()  # after an error in `recv` other workers may still be busy
        self.recovery.note_reset(list(seeds), seeds.values())
        self._resetting, self._reset_seeds, self._reset_by = dict(seeds), dict(seeds), {}
        self._reset_options, self._reset_report = options, Report()
        self._post_reset()

    def end_reset(self, timeout_s: float | None) -> Report:
        """Wait for the reset. Workers lost on the way are replaced, and their slots reset again."""
        if not self.first_half_done:
            self.recovery.must_reset = True
            raise _cut_short("reset")
        report = self._reset_report
        while self._resetting:
            for worker, reply in self._collect_replies("reset", timeout_s, self._timeouts.reset_s).items():
                report.extend(reply.value)
                self._reset_by[worker] = self.node.incarnation(worker)
                block = self.node.blocks[worker]
                self._resetting = {s: seed for s, seed in self._resetting.items() if s not in block}
            # Slots that are not being reset have lost their environments too: they must show it.
            for loss in self.recovery.note_losses(asked=False):
                self.recovery.go_on_or_raise(loss)
            self._reset_again()
            if self._resetting:
                self._post_reset()
        self.gather.mend(list(self._reset_seeds))
        self.recovery.check_failures(report)
        self.recovery.was_reset, self.recovery.must_reset = True, False
        self.observations.update(report)
        return report

    def _reset_again(self) -> None:
        """Workers that were lost after they had answered, while others were waited for: what they reset is gone."""
        for worker, incarnation in list(self._reset_by.items()):
            if self.node.alive(worker) and self.node.incarnation(worker) == incarnation:
                continue
            del self._reset_by[worker]
            block = self.node.blocks[worker]
            self._reset_report.forget(block)
            self._resetting |= {slot: seed for slot, seed in self._reset_seeds.items() if slot in block}

    def _post_reset(self) -> None:
        self.recovery.finish()
        messages = reset_messages(self.node, self.gather, self._resetting, self._reset_options)
        self.node.post(messages)
        self._posted, self._replies = list(messages), {}

    # Calls.

    def by_worker(self, slots: Slots) -> list[tuple[int, list[int], list[int]]]:
        """(worker, rows, slots) of the blocks that these slots belong to."""
        grouped: dict[int, list[int]] = {}
        for slot in slots.tolist():
            grouped.setdefault(int(self.gather.worker_of[slot]), []).append(slot)
        return [(w, [slot - self.node.blocks[w].start for slot in block], block) for w, block in grouped.items()]

    def begin_call(self, method: str, name: str, slots: Slots, arguments: dict[int, tuple[Any, ...]]) -> None:
        """Ask for a method of the blocks, "call" or "set_attr"; `arguments` holds those of each worker."""
        self._call, self._call_slots, self._posted = name, slots, []
        self.recovery.finish()
        self.node.post({worker: Message(method, given) for worker, given in arguments.items()})
        self._posted, self._replies = list(arguments), {}

    def end_call(self, timeout_s: float | None) -> list[Any]:
        """The results, one per slot that was asked."""
        if not self.first_half_done:
            self.drain()  # whoever was asked must have answered before it is asked for anything else
            raise _cut_short("call")
        asked = self.by_worker(self._call_slots)
        replies = self._collect_replies("call", timeout_s, self._timeouts.call_s)
        lost = self.recovery.lost_in_call(self._call)
        if lost is not None:
            raise lost
        for reply in replies.values():
            if reply.failure:
                raise self.recovery.env_error(reply.failure) from reply.failure.error
            if reply.error:
                raise ResultError(reply.error)
        if any(worker not in replies for worker, _, _ in asked):
            raise _cut_short("call")  # when all had answered: an earlier `call_wait` has taken the replies
        results = {
            slot: result
            for worker, _, block in asked
            for slot, result in zip(block, replies[worker].value or [None] * len(block), strict=True)
        }
        return [results[slot] for slot in self._call_slots.tolist()]

    # Inside.

    def _keep_objects(self, slots: Sequence[int], actions: Sequence[Any] | None) -> None:
        """Keep actions that travel as messages until they are answered: after an interrupt they are asked for again."""
        if actions is not None:
            self.node.check_sendable(actions)
            self._objects.update(zip(slots, actions, strict=True))

    def _object_actions(self, slots: Iterable[int]) -> dict[int, ObjectActions] | None:
        """Actions that travel as messages, by worker and row: those of the slots that will really step."""
        if not self._objects:
            return None
        grouped: dict[int, ObjectActions] = {worker: {} for worker in self._everybody}
        for slot in slots:
            if self._waits(slot):
                worker = int(self.gather.worker_of[slot])
                row = slot - self.node.blocks[worker].start
                grouped[worker][row] = (int(self.arena.want[slot]), self._objects[slot])
        return grouped

    def _waits(self, slot: int) -> bool:
        """Whether a slot was asked for and has not answered."""
        return bool(self.arena.have[slot] != self.arena.want[slot])

    def _collect_replies(self, name: str, timeout_s: float | None, limit_s: float | None) -> dict[int, Reply]:
        """The replies to what was posted, from every worker that is not lost on the way."""
        waiting = [worker for worker in self._posted if worker not in self._replies]
        self._replies.update(self.node.replies(waiting, limit_s if timeout_s is None else timeout_s))
        late = [worker for worker in waiting if worker not in self._replies and self.node.alive(worker)]
        if late and timeout_s is not None:
            raise _timed_out(f"{name}_wait", timeout_s)
        for worker in late:
            self.node.lose(worker, f"no answer to {name} within {limit_s} s")
        replies, self._replies, self._posted = self._replies, {}, []
        return replies

    def _collect(self) -> None:
        """Take what the workers have reported, with losses turned into answers."""
        report = self.node.reports()
        self.recovery.settle(report)
        if report.observations:
            self.observations.update(report)
            report.observations = []  # an old one must not come again after a reset

    def _take_reported(self, slots: set[int]) -> Report:
        """The part of what was reported that belongs to these slots; the rest waits for its own."""
        taken, rest = Report(), Report()
        for entry in self.node.reported.infos:
            (taken if entry[0] in slots else rest).infos.append(entry)
        for batch_slots, infos in self.node.reported.block_infos:
            mine = np.isin(batch_slots, list(slots))
            for part, rows in ((taken, mine), (rest, ~mine)):
                if rows.any():
                    part.block_infos.append((batch_slots[rows], rows_of(infos, rows)))
        self.node.reported = rest
        return taken

    def _forget_reported(self) -> None:
        """What was reported of the last step has been handed over."""
        if self.node.reported:
            self.node.reported = Report()

    def count_again(self, *, single: bool) -> None:
        """After an interrupt: count only slots that were really asked for as in flight.

        If `single` slots were under way, by `send`, also drop what was reported of slots that `recv` has handed over.
        """
        self.gather.count_again()
        if single:
            self.node.reported = self.node.reported.about(self.gather.all_pending())

    def _look_after_workers(self) -> None:
        """Now and then, however busy the others keep us: find workers that have died or do not answer."""
        now, limit_s = time.monotonic(), self._timeouts.step_s
        if now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        self.node.look()
        if limit_s is not None:
            for worker in self.gather.overdue(now, limit_s):
                self.node.lose(worker, f"no answer to a step within {limit_s} s")
        self._collect()


def _cut_short(name: str) -> NoAsyncCallError:
    return NoAsyncCallError(
        f"Calling `{name}_wait` after a {name} that was interrupted, of which nothing comes any more; it may have "
        f"happened in some slots. Call `{name}` again.",
        name,
    )


def _timed_out(name: str, timeout_s: float) -> multiprocessing.TimeoutError:
    return multiprocessing.TimeoutError(
        f"The call to `{name}` has timed out after {timeout_s} second(s). It is still under way: call `{name}` "
        "again to wait on, or `reset()` to give it up."
    )
