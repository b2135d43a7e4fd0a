"""What happens after a loss: which errors are raised, what the lost slots answer, how workers are replaced."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv.cluster.restart import Budgets, Fault, fresh_seed
from clusterenv.config import OnLoss
from clusterenv.errors import EnvError, LaunchError, WorkerLost, named, words_of
from clusterenv.node.base import Message
from clusterenv.transport.uninterrupted import uninterrupted
from clusterenv.worker.report import Report

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    import numpy.typing as npt

    from clusterenv.cluster.gather import Gather
    from clusterenv.config import Timeouts
    from clusterenv.env.observations import Observations
    from clusterenv.node.base import Loss, Node
    from clusterenv.transport.arena import Arena
    from clusterenv.worker.base import ResetOptions
    from clusterenv.worker.loop import Reply
    from clusterenv.worker.report import Failure

_logger = logging.getLogger(__name__)

# A replaced worker draws seeds far from those that a block draws for single environments, so that the two never meet.
_WORKER_RESTARTS = 1_000_000


class Recovery:
    """Replaces lost workers and answers for their slots."""

    def __init__(
        self,
        node: Node,
        arena: Arena,
        gather: Gather,
        observations: Observations,
        autoreset_mode: AutoresetMode,
        on_loss: OnLoss,
        timeouts: Timeouts,
    ) -> None:
        self._node, self._arena, self._gather, self._observations = node, arena, gather, observations
        self._mode, self._on_loss, self._timeouts = autoreset_mode, on_loss, timeouts
        self._budgets = Budgets()
        self._replaced = np.zeros(len(node.blocks), dtype=np.int64)
        self._starting: list[int] = []
        # Lost workers, until another is started, so that none is forgotten after an interrupt. With the loss as long as
        # nobody has decided whether to go on or to raise.
        self._unstarted: dict[int, Loss | None] = {}
        self._left_out: dict[int, Exception] = {}  # those that an elastic stream goes on without, and why
        self.elastic = False
        # Kept until all is answered, so that after an interrupt the next call goes on from here.
        self._unanswered: list[int] = []  # slots that were asked for, of lost workers
        self._last_seen: dict[int, Any] = {}  # their observations, which a reset may have written over by then
        count = arena.spec.num_envs
        self.seeds: list[int | None] = [None] * count
        self.was_reset = False  # before that there is no episode to truncate, so every error is raised
        self.must_reset = False  # after an error was raised only a reset makes the batch whole

    @property
    def restarts(self) -> int:
        """How many workers were replaced."""
        return int(self._replaced.sum())

    def note_reset(self, slots: list[int], seeds: Iterable[int | None]) -> None:
        """These slots are about to be reset by name."""
        for slot, seed in zip(slots, seeds, strict=True):
            if seed is not None:
                self.seeds[slot] = seed
        self._gather.count_from_here(slots)
        self._budgets.forgive()
        for worker in range(len(self._node.blocks)):
            if not self._node.alive(worker) and worker not in self._starting:
                self.replace(worker)

    def settle(self, report: Report) -> None:
        """Turn new losses into answers, and failures into a log line or an error."""
        self._take_losses()
        # Only now: the workers of a lost host come back together.
        self.answer(report)
        if report.failures:
            self.check_failures(report)
            report.failures = []

    def _take_losses(self, fresh: Container[int] = ()) -> None:
        """The slots of a lost worker shall show it, now or with the next request, and another takes its place."""
        for loss in self.note_losses(fresh):
            self.go_on_or_raise(loss)

    def note_losses(self, fresh: Container[int] = (), *, asked: bool = True) -> list[Loss]:
        """Note which workers were lost. Returns the losses on which nobody has decided yet, if they go on or raise.

        All of them are noted before the first is replaced, which takes time and may be interrupted.

        Args:
            fresh: those that have had no episode yet. Of one that is lost again before that nothing is to be told.
            asked: whether their slots that were asked for are answered, as lost; otherwise these requests are dropped.
        """
        if self._node.has_losses:
            uninterrupted(self._note_losses, fresh, asked)  # taken from the node and not noted, nobody would see them
        return [loss for loss in self._unstarted.values() if loss is not None] if self._unstarted else []

    def _note_losses(self, fresh: Container[int], asked: bool) -> None:
        for loss in self._node.losses():
            known = loss.worker in self._unstarted or loss.worker in fresh
            self._unstarted[loss.worker] = loss
            if not asked:
                self._gather.lose(self._node.blocks[loss.worker], reported=True)
            elif not known:
                self._unanswered += self._gather.lose(self._node.blocks[loss.worker], reported=loss.reported)
                if loss.torn is not None:
                    self._observations.blank(loss.torn)

    def go_on_or_raise(self, loss: Loss, at: int | None = 0) -> None:
        """Start a replacement for a lost worker, or raise WorkerLost.

        `at` says in which step of a fragment it was lost, counted from 1, or None if that is not known.
        """
        steps = self._gather.steps_ever(self._node.blocks[loss.worker].start)
        tolerable = self._budgets.tolerates(loss.fault, f"worker {loss.worker}", steps)
        if self.elastic and not tolerable:
            _logger.warning("worker %d is lost again and again (%s); the others go on", loss.worker, loss.cause)
            self._left_out.setdefault(loss.worker, self.error_of(loss, at, again=True))
            self._unstarted.pop(loss.worker, None)
            return
        # A limit on memory is there to be reached; who sets one asks for fresh workers, whatever `on_loss` says.
        wants_error = self._on_loss is OnLoss.RAISE and loss.fault is not Fault.MEMORY
        if wants_error or not tolerable:
            self._give_up()
            raise self.error_of(loss, at, again=not wants_error)
        _logger.warning("worker %d is lost (%s); starting another", loss.worker, loss.cause)
        self.replace(loss.worker)

    def note_broken(self, slots: npt.NDArray[np.intp]) -> None:
        """These slots were lost before they were asked for; `answer` tells it."""
        self._unanswered += slots.tolist()

    def answer(self, report: Report) -> None:
        """Lost slots come back truncated; with autoreset in the same step, already in their next episode."""
        while count := len(self._unanswered):  # others may be lost meanwhile
            slots = list(dict.fromkeys(self._unanswered))
            of_reset = Report()
            if self._mode is AutoresetMode.SAME_STEP:
                for slot in slots:
                    self._last_seen.setdefault(slot, self._observations.one(slot))
                of_reset = self._reset_fresh(slots)
            uninterrupted(self._note_answers, count, slots, of_reset, report)

    def _note_answers(self, count: int, slots: list[int], of_reset: Report, report: Report) -> None:
        infos: list[tuple[int, dict[str, Any]]] = [(slot, {"worker_lost": True}) for slot in slots]
        if self._mode is AutoresetMode.SAME_STEP:
            infos += [(slot, {"final_obs": self._last_seen.pop(slot), "final_info": {}}) for slot in slots]
        # Infos of a slot that is lost after all would tell of a step that the user never sees.
        report.infos = [entry for entry in report.infos if entry[0] not in slots] + infos
        report.extend(of_reset)
        self._arena.reward[slots] = 0.0
        self._arena.terminated[slots] = False
        self._arena.truncated[slots] = True
        del self._unanswered[:count]

    def replace(self, worker: int) -> None:
        """Start a fresh worker in the place of a lost one; `finish` waits for it."""
        self._unstarted[worker] = None  # if it is interrupted, `finish` begins again
        try:
            seeds = [self._fresh_seed(slot, 1) for slot in self._node.blocks[worker]]
            self._node.replace(worker, seeds, patient=self.elastic)
        except LaunchError:
            self._give_up()
            raise
        uninterrupted(self._note_started, worker)

    def _note_started(self, worker: int) -> None:
        self._replaced[worker] += 1
        if worker not in self._starting:
            self._starting.append(worker)
        self._unstarted.pop(worker, None)

    def allow_shrinking(self) -> None:
        """A stream begins that may go on with fewer workers, if that was asked for."""
        self.elastic = self._on_loss is OnLoss.SHRINK

    @property
    def missing(self) -> bool:
        """Whether a worker is lost and not back yet, or was left out."""
        return bool(self._starting or self._left_out)

    def is_here(self, worker: int) -> bool:
        """Whether a worker is neither lost nor on its way back."""
        return self._node.alive(worker) and worker not in self._starting

    def arrived(self) -> list[int]:
        """The replacements that are built by now; nobody is waited for."""
        found = self._node.built(self._starting) if self._starting else {}
        self._starting = [worker for worker in self._starting if worker not in found]
        for worker, reply in found.items():
            if reply is not None and not self.elastic:
                self._raise_problem(reply)
            if reply is not None:
                self._left_out[worker] = self._problem(reply)
                why = words_of(self._left_out[worker])
                _logger.warning("worker %d could not build its environments; the others go on: %s", worker, why)
        return [worker for worker, reply in found.items() if reply is None]

    def raise_if_nobody_is_left(self) -> None:
        """Raise if every worker is lost for good: an elastic stream would wait for nobody. The first says why."""
        if self._left_out and not self._starting and not any(map(self._node.alive, range(len(self._node.blocks)))):
            self._give_up()
            first, self._left_out = next(iter(self._left_out.values())), {}  # a reset looks who is missing
            raise first

    def finish(self) -> None:
        """Wait until every replacement is built. What an elastic stream has left out is wanted again."""
        if self._unstarted or self._left_out:
            for worker in sorted(self._unstarted | self._left_out.keys()):
                self._left_out.pop(worker, None)
                loss = self._unstarted.get(worker)
                self.replace(worker) if loss is None else self.go_on_or_raise(loss)
        while self._starting:
            problems = self._node.ready(self._starting, self._timeouts.start_s)
            fresh, self._starting = self._starting, []  # only now: an interrupted wait goes on with the next call
            for reply in problems.values():
                self._raise_problem(reply)
            self._take_losses(fresh)

    def _raise_problem(self, reply: Reply) -> None:
        self._give_up()
        raise self._problem(reply)

    def _problem(self, reply: Reply) -> Exception:
        """The error for a replacement that could not build its environments."""
        if not reply.failure:
            return LaunchError(f"a replacement worker could not build its environments:\n{reply.error}")
        error = self.env_error(reply.failure)
        error.__cause__ = reply.failure.error
        return error

    def check_failures(self, report: Report) -> None:
        """Log environments that were replaced; raise for those that were not, or that fail again and again."""
        for failure in report.failures:
            # The steps of a fragment are counted when all of it is here; this one is at its step `at`.
            steps = self._gather.steps_ever(failure.slot) + failure.at
            may_go_on = self.was_reset and failure.recovered
            tolerable = self._budgets.tolerates(Fault.ENVIRONMENT, f"slot {failure.slot}", steps)
            if not may_go_on or not tolerable:
                self._give_up()
                raise self.env_error(failure, again=may_go_on) from failure.error
            words = named(failure.error)
            _logger.warning("slot %d raised in %s and was replaced: %s", failure.slot, failure.doing, words)

    def lost_in_call(self, name: str) -> WorkerLost | None:
        """A call cannot come back truncated: the error, if a worker was lost in it. Steps can go on after that."""
        losses, replaced = self.note_losses(asked=False), self._on_loss is not OnLoss.RAISE
        if not losses:
            return None
        if replaced:
            for loss in losses:
                self.replace(loss.worker)
        else:
            self.must_reset = True
            self._unstarted.clear()  # a reset looks who is missing
        return self.error_of(losses[0]._replace(cause=f"{losses[0].cause}, in {name}"), replaced=replaced)

    def error_of(self, loss: Loss, at: int | None = 0, *, again: bool = False, replaced: bool = False) -> WorkerLost:
        """The error that tells of a loss; `at` as in `go_on_or_raise`."""
        slots, slot = self._node.blocks[loss.worker], loss.slot
        if slot is None:
            return WorkerLost(loss.worker, slots, loss.cause, again=again, replaced=replaced)
        where = {"slot": slot, "seed": self.seeds[slot], "step": None if at is None else self._gather.steps(slot) + at}
        return WorkerLost(loss.worker, slots, loss.cause, again=again, replaced=replaced, **where)

    def _reset_fresh(self, slots: list[int]) -> Report:
        """Reset slots of replaced workers, also if those are lost again on the way."""
        report = Report()
        todo = {slot: self._fresh_seed(slot) for slot in slots}
        while todo:
            self.finish()
            messages = reset_messages(self._node, self._gather, todo, None)
            # With `send` a worker may be at work for other slots; a message must not take the place of that request.
            for worker in self._node.wait(list(messages), self._timeouts.step_s):
                self._node.lose(worker, f"no answer to a step within {self._timeouts.step_s} s")
            self._node.post(messages)
            replies = self._node.replies(list(messages), self._timeouts.reset_s)
            for worker in messages:
                if worker not in replies:
                    self._node.lose(worker, f"no answer to a reset within {self._timeouts.reset_s} s")
            for worker, reply in replies.items():
                report.extend(reply.value)
                todo = {slot: seed for slot, seed in todo.items() if self._gather.worker_of[slot] != worker}
            self._take_losses(set(messages) - set(replies))
        self.check_failures(report)
        report.failures = []  # they are told, and counted: `settle` must not do so again
        self._observations.update(report)
        return report

    def _fresh_seed(self, slot: int, more: int = 0) -> int | None:
        """The seed of a slot whose worker was replaced; `more` restarts are not counted yet."""
        restarts = int(self._replaced[self._gather.worker_of[slot]]) + more
        return fresh_seed(self.seeds[slot], slot, _WORKER_RESTARTS + restarts)

    def forget_requests(self) -> None:
        """Nothing is asked for any more."""
        self._unanswered, self._last_seen, self._node.reported = [], {}, Report()
        self._gather.forget_requests()

    def _give_up(self) -> None:
        self.must_reset = True
        self._unstarted.clear()  # a reset looks who is missing
        self.forget_requests()

    def env_error(self, failure: Failure, *, again: bool = False) -> EnvError:
        """The error for an environment that raised; `again` if it was replaced before, and is not any more."""
        return EnvError.of(
            failure.error,
            slot=failure.slot,
            doing=failure.doing,
            seed=self.seeds[failure.slot],
            step=self._gather.steps(failure.slot) + failure.at,
            remote_traceback=failure.traceback,
            again=again,
        )


def reset_messages(
    node: Node, gather: Gather, seeds: Mapping[int, int | None], options: ResetOptions
) -> dict[int, Message]:
    """The reset of these slots, as one message per worker. A list of options has one for every slot of the batch."""
    by_worker: dict[int, list[int]] = {}
    for slot in seeds:
        by_worker.setdefault(int(gather.worker_of[slot]), []).append(slot)
    return {
        worker: Message(
            "reset",
            (
                [slot - node.blocks[worker].start for slot in slots],
                [seeds[slot] for slot in slots],
                [options[slot] for slot in slots] if isinstance(options, list) else options,
            ),
        )
        for worker, slots in by_worker.items()
    }
