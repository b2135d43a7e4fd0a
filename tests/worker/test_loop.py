"""The worker's loop, run in a thread of this process: requests in, rows and replies out."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv.node.board import Board
from clusterenv.spaces import leaves_of
from clusterenv.transport.arena import Arena, ArenaSpec, Command, Word
from clusterenv.transport.channel import Channel, ChannelClosed
from clusterenv.worker.block import EnvBlock
from clusterenv.worker.loop import Binding, Reply, Setup, WorkerLoop, main
from tests.worker.kit import BOX, ScriptedEnv, ends_after, observed
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = 20.0
WORKER, SLOTS = 1, range(1, 4)


class Head:
    """The head's side of one worker: three slots of a batch of four."""

    def __init__(self, channel: Channel, arena: Arena) -> None:
        self.channel, self.arena = channel, arena
        self.board = Board(arena, spare_core=False)
        self._number = 0

    def ask(self, command: Command, *slots: int) -> None:
        """Ask for these slots and wake the worker."""
        self._number += 1
        self.arena.want[list(slots)] = self._number
        self.board.ask([WORKER], command)

    def post(self, name: str, *arguments: Any) -> Reply:
        """Send a message and take the reply."""
        self.channel.send((name, arguments), LIMIT_S)
        self.board.ask([WORKER], Command.MESSAGE)
        reply: Reply = self.channel.receive(LIMIT_S)
        assert reply.request == self.board.asked(WORKER), "a reply names the request that it answers"
        return reply

    def reports(self) -> list[Any]:
        """The messages that the worker has announced."""
        found = []
        while self.board.unread(WORKER):
            found.append(self.channel.receive(LIMIT_S))
            self.board.note_read(WORKER)
        return found

    def wait(self) -> None:
        """Until the last request is answered."""
        wait_until(lambda: self.board.unanswered([WORKER]) is None, LIMIT_S)


@contextmanager
def worker(
    make: Callable[[int], Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    seeds: tuple[int | None, ...] | None = None,
    action_space: spaces.Space[Any] | None = None,
    prepare: Callable[[Board], None] = lambda board: None,
    bell: int = 0,
) -> Iterator[Head]:
    """A worker of three environments in a thread, up to its close."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    attached: list[Arena] = []
    monkeypatch.setattr(Arena, "attach", _attacher(attached))

    def build() -> EnvBlock:
        return EnvBlock(
            [functools.partial(make, row) for row in range(3)], SLOTS, AutoresetMode.NEXT_STEP, rebuild=True
        )

    channel, theirs = Channel.pair()
    thread = threading.Thread(target=main, args=(theirs,))
    thread.start()
    actions = action_space or spaces.Discrete(3)
    arena = Arena.create(ArenaSpec(4, 2, tuple(leaves_of(BOX) or ()), tuple(leaves_of(actions) or ())))
    try:
        channel.send(Setup(WORKER, list(sys.path), False, cloudpickle.dumps(build)), LIMIT_S)
        description = channel.receive(LIMIT_S).value
        assert description.slots == SLOTS
        head = Head(channel, arena)
        prepare(head.board)
        arena.bell[0] = bell
        head.board.welcome(WORKER)
        channel.send(Binding(arena.spec, BOX, actions, seeds), LIMIT_S)
        channel.send_fd(arena.fd, LIMIT_S)
        yield head
        closing = head.post("close")
        assert (closing.value, closing.failure, closing.error) == (None, None, None)
    finally:
        if thread.is_alive() and "head" in locals():  # the test has failed: do not let its worker disturb the next
            channel.send(("close", ()), LIMIT_S)
            head.board.ask([WORKER], Command.MESSAGE)
        channel.close()
        thread.join(LIMIT_S)
        theirs.close()
        for one in (arena, *attached):
            one.close()
    assert not thread.is_alive()


def _attacher(attached: list[Arena]) -> Any:
    """A worker process leaves its arena to the end of the process; a thread must not."""
    attach = Arena.attach

    def remember(spec: ArenaSpec, fd: int) -> Arena:
        attached.append(attach(spec, fd))
        return attached[-1]

    return remember


def test_a_step_answers_the_slots_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(lambda row: ScriptedEnv(), monkeypatch) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        head.ask(Command.STEP_SOME, 1, 3)
        head.wait()
        assert head.arena.have.tolist() == [0, 1, 0, 1]
        assert head.arena.observation[0].tolist() == [[0, 0], [1, 1], [0, 1], [1, 1]]
        assert not head.reports()


def test_lock_step_answers_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(lambda row: ScriptedEnv(), monkeypatch) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        for number in (1, 2):
            head.ask(Command.STEP, 1, 2, 3)
            head.wait()
            assert head.arena.have.tolist() == [0, number, number, number]
            assert head.arena.observation[0].tolist() == [[0, 0], [number, 1], [number, 1], [number, 1]]


def test_in_lock_step_only_the_last_worker_rings_the_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(lambda row: ScriptedEnv(), monkeypatch) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        other = head.arena.word(1 - WORKER, Word.GO)
        before = head.arena.bell[0]
        head.arena.words[other] = 1  # the other one is at work
        head.ask(Command.STEP, 1, 2, 3)
        head.wait()
        assert head.post("call", [0], "steps", (), {}).value == [1]  # so that it has come to the end of the step
        assert head.arena.bell[0] == before
        head.arena.words[other] = 0  # it has answered
        head.ask(Command.STEP, 1, 2, 3)
        wait_until(lambda: head.arena.bell[0] != before, LIMIT_S)


@pytest.mark.parametrize("bell", [0, 1, 2, 3, 1001])
def test_the_first_ring_of_a_replacement_is_heard(monkeypatch: pytest.MonkeyPatch, bell: int) -> None:
    with worker(lambda row: ScriptedEnv(), monkeypatch, bell=bell) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        wait_until(lambda: head.arena.bell[0] != bell, LIMIT_S)


@pytest.mark.parametrize("command", [Command.SEND, Command.STEP_SOME])
def test_whoever_is_last_rings_when_all_is_answered(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    """Also with a message, and with slots that were sent: a head that gives those up waits for all workers."""
    rings: list[tuple[int, int]] = []
    with worker(lambda row: ScriptedEnv(), monkeypatch) as head:
        go, done = (head.arena.word(WORKER, word) for word in (Word.GO, Word.DONE))
        ring = WorkerLoop._ring_bell

        def note(loop: WorkerLoop) -> None:
            rings.append((head.arena.words[go], head.arena.words[done]))
            ring(loop)

        monkeypatch.setattr(WorkerLoop, "_ring_bell", note)
        head.post("reset", [0, 1, 2], [None] * 3, None)
        head.ask(command, 1, 2)
        wait_until(lambda: (2, 2) in rings, LIMIT_S)
        assert (1, 1) in rings
    assert rings[-1] == (3, 3), "the last message, to close, is answered too"


def test_a_request_without_slots_is_answered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(lambda row: ScriptedEnv(), monkeypatch) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        head.ask(Command.STEP_SOME)
        head.wait()
        assert head.arena.observation[0][1:].tolist() == [[0, 1]] * 3


def test_infos_are_announced_before_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(lambda row: ScriptedEnv(ends_after(9, {"row": row})), monkeypatch) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        for _ in range(2):
            head.ask(Command.STEP, 1, 2, 3)
            head.wait()
        reports = head.reports()
        assert [report.infos for report in reports] == [[(1, {"row": 0}), (2, {"row": 1}), (3, {"row": 2})]] * 2


def test_send_shows_its_slots_and_rings_the_bell(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(lambda row: ScriptedEnv(ends_after(9, {"row": row})), monkeypatch) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        before = head.arena.bell[0]
        head.ask(Command.SEND, 2)
        head.wait()
        assert head.arena.have.tolist() == [0, 0, 1, 0]
        assert head.arena.bell[0] != before
        head.ask(Command.SEND, 1, 3)
        head.wait()
        assert head.arena.have.tolist() == [0, 2, 1, 2]
        infos = [entry for report in head.reports() for entry in report.infos]
        assert sorted(slot for slot, _ in infos) == [1, 2, 3]


def test_send_shows_a_quick_slot_before_a_slow_one_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, slow = threading.Event(), threading.Event()

    def step(env: ScriptedEnv) -> Any:
        if len(env.actions) == 2:
            slow.set()
            assert gate.wait(LIMIT_S)
        return observed(1, 1), 0.0, False, False, {}

    # In a thread the environments are shared: the pickled factory would copy the events.
    made = {0: ScriptedEnv(), 1: ScriptedEnv(step), 2: ScriptedEnv()}
    monkeypatch.setattr("tests.worker.test_loop.MADE", made)
    with worker(_made, monkeypatch) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        monkeypatch.setattr("clusterenv.worker.loop._SHOW_EVERY_S", 0.0)
        head.ask(Command.SEND, 1, 2, 3)
        head.wait()
        head.ask(Command.SEND, 1, 2, 3)
        assert slow.wait(LIMIT_S)
        assert head.arena.have.tolist()[1:] == [2, 1, 1], "the first is done, the second is at work"
        assert head.board.position(WORKER)[0] == 2
        gate.set()
        head.wait()
        assert head.arena.have.tolist()[1:] == [2, 2, 2]


MADE: dict[int, ScriptedEnv] = {}


def _made(row: int) -> ScriptedEnv:
    return MADE[row]


def first_waits(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Three environments, of which the first waits in its step for the first event, and sets the second."""
    gate, inside = threading.Event(), threading.Event()

    def step(env: ScriptedEnv) -> Any:
        inside.set()
        assert gate.wait(LIMIT_S)
        return observed(1, 1), 0.0, False, False, {}

    monkeypatch.setattr("tests.worker.test_loop.MADE", {0: ScriptedEnv(step), 1: ScriptedEnv(), 2: ScriptedEnv()})
    return gate, inside


def test_requests_during_a_pass_start_another(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, inside = first_waits(monkeypatch)
    with worker(_made, monkeypatch) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        head.ask(Command.SEND, 1)
        assert inside.wait(LIMIT_S)
        head.ask(Command.SEND, 2)
        head.ask(Command.SEND, 3)
        gate.set()
        head.wait()
        assert head.arena.have.tolist() == [0, 1, 2, 3]
        assert [len(env.actions) for env in MADE.values()] == [1, 1, 1], "each slot is stepped once"


def test_actions_that_fit_no_array_come_as_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    space = spaces.Text(5)
    monkeypatch.setattr("tests.worker.test_loop.MADE", {row: ScriptedEnv() for row in range(3)})
    with worker(_made, monkeypatch, action_space=space) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        head.channel.send({0: (1, "left"), 2: (1, "right")}, LIMIT_S)
        head.ask(Command.STEP_SOME, 1, 3)
        head.wait()
        assert [env.actions for env in MADE.values()] == [["left"], [], ["right"]]


def test_two_requests_with_actions_as_messages_are_both_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    # The worker may be busy when both arrive: it must not step two slots with the actions of one message.
    gate, inside = first_waits(monkeypatch)
    with worker(_made, monkeypatch, action_space=spaces.Text(5)) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        for number, slot, action in ((1, 1, "a"), (2, 2, "b"), (3, 3, "c")):
            head.channel.send({slot - SLOTS.start: (number, action)}, LIMIT_S)
            head.ask(Command.SEND, slot)
            assert inside.wait(LIMIT_S)
        gate.set()
        head.wait()
        assert [env.actions for env in MADE.values()] == [["a"], ["b"], ["c"]]


def test_counts_run_over_without_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two thousand million messages are a few days of a fast environment with infos.
    def near_the_end(board: Board) -> None:
        board._asked[:] = 2**31 - 2
        board._read[:] = 2**31 - 2

    with worker(lambda row: ScriptedEnv(ends_after(9, {"row": row})), monkeypatch, prepare=near_the_end) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        for number in range(1, 5):
            head.ask(Command.STEP, 1, 2, 3)
            head.wait()
            assert len(head.reports()) == 1
            assert head.arena.have.tolist() == [0, number, number, number]


def test_a_replacement_resets_with_its_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(lambda row: ScriptedEnv(), monkeypatch, seeds=(4, None, 6)) as head:
        head.ask(Command.STEP, 1, 2, 3)
        head.wait()
        assert head.arena.observation[0][1:].tolist() == [[0, 1]] * 3
        assert head.post("call", [0, 1, 2], "seeds", (), {}).value == [[4], [None], [6]]


# Messages.


def test_calls_and_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(lambda row: ScriptedEnv(), monkeypatch) as head:
        assert head.post("set_attr", [0, 2], "level", [7, 8]).value is None
        assert head.post("call", [2, 0], "level", (), {}).value == [8, 7]


def test_an_error_in_a_call_is_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(lambda row: ScriptedEnv(), monkeypatch) as head:
        failure = head.post("call", [1], "no_such_thing", (), {}).failure
        assert failure is not None
        assert (failure.slot, failure.doing) == (2, "no_such_thing")
        assert head.post("call", [0], "steps", (), {}).value == [0], "the worker goes on"


def test_a_result_that_cannot_be_pickled_is_a_reply_that_names_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.worker.test_loop.MADE", {row: ScriptedEnv() for row in range(3)})
    with worker(_made, monkeypatch) as head:
        MADE[0].lock = threading.Lock()  # type: ignore[attr-defined]
        reply = head.post("call", [0], "lock", (), {})
        assert reply.error is not None
        assert "the result of 'lock' cannot be sent" in reply.error


def test_an_info_that_cannot_be_pickled_is_a_failure_that_names_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(row: int) -> ScriptedEnv:
        def step(env: ScriptedEnv) -> Any:
            info = {"fine": row, "bad": threading.Lock()} if row == 1 else {"fine": row}
            return observed(1, 1), 0.0, False, False, info

        return ScriptedEnv(step)

    with worker(make, monkeypatch) as head:
        head.post("reset", [0, 1, 2], [None] * 3, None)
        head.ask(Command.STEP, 1, 2, 3)
        head.wait()
        (report,) = head.reports()
        assert report.infos == [(1, {"fine": 0}), (3, {"fine": 2})]
        (failure,) = report.failures
        assert failure.slot == 2
        assert "'bad'" in str(failure.error)


def test_a_reset_whose_info_cannot_be_pickled_names_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(row: int) -> ScriptedEnv:
        return ScriptedEnv(on_reset=lambda env: (observed(0, 0), {"bad": threading.Lock()}))

    with worker(make, monkeypatch) as head:
        reply = head.post("reset", [0, 1, 2], [None] * 3, None)
        failures = reply.value.failures
        assert [(failure.slot, failure.doing) for failure in failures] == [(1, "reset"), (2, "reset"), (3, "reset")]
        assert "cannot be sent" in str(failures[0].error)


# The start.


def start(build: bytes) -> tuple[Reply, bool]:
    """The first reply of a worker, and whether it ends by itself."""
    channel, theirs = Channel.pair()
    thread = threading.Thread(target=main, args=(theirs,))
    thread.start()
    try:
        channel.send(Setup(0, list(sys.path), False, build), LIMIT_S)
        reply: Reply = channel.receive(LIMIT_S)
        if reply.value is None:
            thread.join(LIMIT_S)
        return reply, not thread.is_alive()
    finally:
        channel.close()
        thread.join(LIMIT_S)
        theirs.close()


def test_a_factory_that_raises_ends_the_worker_with_a_reply() -> None:
    def build() -> EnvBlock:
        def broken() -> ScriptedEnv:
            raise OSError("no such ROM")

        return EnvBlock([broken], range(7, 8), AutoresetMode.NEXT_STEP, rebuild=True)

    reply, ended = start(cloudpickle.dumps(build))
    assert reply.failure is not None
    assert (reply.failure.slot, str(reply.failure.error), ended) == (7, "no such ROM", True)


def test_a_build_that_cannot_be_loaded_ends_the_worker_with_a_reply() -> None:
    reply, ended = start(b"no pickle at all")
    assert reply.error is not None
    assert "UnpicklingError" in reply.error
    assert ended


def test_a_space_that_cannot_be_pickled_ends_the_worker_with_a_reply() -> None:
    def build() -> EnvBlock:
        space = spaces.Box(0, 1, (1,), np.float32)
        space.lock = threading.Lock()  # type: ignore[attr-defined]
        return EnvBlock([lambda: ScriptedEnv(observation_space=space)], range(1), AutoresetMode.NEXT_STEP, rebuild=True)

    reply, ended = start(cloudpickle.dumps(build))
    assert reply.error is not None
    assert ended


@pytest.mark.parametrize("moment", ["at once", "after the set-up"])
def test_a_head_that_leaves_early_ends_the_worker(moment: str) -> None:
    channel, theirs = Channel.pair()
    thread = threading.Thread(target=main, args=(theirs,))
    thread.start()
    if moment == "after the set-up":

        def build() -> EnvBlock:
            return EnvBlock([ScriptedEnv], range(1), AutoresetMode.NEXT_STEP, rebuild=True)

        channel.send(Setup(0, list(sys.path), False, cloudpickle.dumps(build)), LIMIT_S)
        channel.receive(LIMIT_S)
    channel.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    theirs.close()
    with pytest.raises(ChannelClosed):
        channel.receive(LIMIT_S)
