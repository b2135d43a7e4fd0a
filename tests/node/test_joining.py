"""The door of a cluster: who is let in, who is refused and why, and what the head says meanwhile."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from clusterenv._version import __version__
from clusterenv.clusters import Join, Slurm, Tcp
from clusterenv.errors import ConfigError, LaunchError, WorkersMissing
from clusterenv.node import joining
from clusterenv.transport.security import parse_keys
from clusterenv.wire import messages as m
from clusterenv.wire.frames import CUT_OFF, JOIN_BELOW
from tests.node import puppets
from tests.node.puppets import Puppet, Theatre, arrives_again, on_stage

if TYPE_CHECKING:
    from clusterenv.launchers.base import NodeJob


def test_nodes_are_welcome_and_told_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        welcomes = [message for _, message in theatre.told if isinstance(message, m.Welcome)]
        assert welcomes == [m.Welcome(silence_s=10.0, beat_s=2.0)] * 2
        assert head.node.blocks == [range(2), range(2, 4)]


class Latecomer(Theatre):
    """The second node comes when the first has beaten three times."""

    beats, last_s = 0, 0.0

    def start(self, job: NodeJob) -> None:
        self.run = parse_keys(job.keys).run
        self._say_hello(self.puppets[0])

    def receive(self, limit_s: float) -> tuple[bytes, list[Any]] | None:
        if not self._waiting and self.beats < 4:
            self.beats += 1
            if self.beats == 4:
                self._say_hello(self.puppets[1])
            else:
                self.last_s = time.monotonic()
                self.arrive(self.puppets[0].peer, [m.encode(m.Beat(progress=[0], seen=0))])
        return super().receive(limit_s)

    def _say_hello(self, puppet: Puppet) -> None:
        self.arrive(puppet.peer, [m.encode(puppet.hello(self.run))])


def test_who_waits_for_others_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be taken for silent as soon as all are there."""
    theatre = Latecomer()
    monkeypatch.setattr(joining, "Hub", lambda keys, host, port, **options: theatre)
    door = joining.Joining(Tcp(nodes=2), theatre)
    first, _ = door.gather(4)[0]
    assert theatre.last_s > 0
    assert first.heard_s >= theatre.last_s
    door.close(0.0)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an older protocol": ({"protocol": m.PROTOCOL - 1}, rf"\(protocol {m.PROTOCOL - 1}\).*\(protocol {m.PROTOCOL}\)"),
    "a newer protocol": ({"protocol": m.PROTOCOL + 1}, rf"\(protocol {m.PROTOCOL + 1}\).*\(protocol {m.PROTOCOL}\)"),
    "another version": ({"clusterenv": "0.0.1"}, rf"clusterenv 0\.0\.1 .* the head has {__version__}"),
    "another run": ({"run": "f" * 16}, "belongs to another run"),
    "one that has seen a later head": ({"epoch": 1}, r"served a later head of this run \(epoch 1; this one has 0\)"),
    "one with things of another head": ({"fresh": False}, "what another head of this run has left"),
}


@pytest.mark.threat("T24")
@pytest.mark.fault("F54")
@pytest.mark.parametrize(("changes", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_a_node_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], says: str
) -> None:
    """The head shows it at once and does not wait for another; so does the node."""
    theatre = Theatre()
    theatre.hellos[1] = changes
    began = time.monotonic()
    with pytest.raises(LaunchError, match=rf"a node could not join: puppet1: .*{says}"), on_stage(monkeypatch, theatre):
        pass
    assert time.monotonic() - began < 30.0
    assert len(theatre.refusals(b"peer 1")) == 1
    assert theatre.refusals(b"peer 0") == []
    assert theatre.closed


STEERING = "\x1b]0;owned\x07\x1b[2Jno\rde\x9b\n"


@pytest.mark.threat("T20")
def test_whoever_knocks_steers_no_terminal(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Names and versions are read by people, in errors and logs; without keys they are anybody's."""
    theatre = Theatre()
    theatre.hellos[1] = {"name": f"{STEERING}forged", "clusterenv": STEERING}
    with pytest.raises(LaunchError) as caught, on_stage(monkeypatch, theatre):
        pass
    assert str(caught.value).startswith("a node could not join: node forged: it has clusterenv node (protocol ")
    assert "node node forged is refused: it has clusterenv node (protocol " in caplog.text
    assert str(caught.value).isprintable()
    assert all(each.isprintable() for each in caplog.messages)


SAID = {
    "a goodbye": m.Leave(reason=STEERING),
    "a loss": m.Lost(worker=0, life=0, cause=STEERING),
    "an answer": m.Answer(number=3, error=STEERING),
}


@pytest.mark.threat("T20")
@pytest.mark.parametrize("message", SAID.values(), ids=SAID.keys())
def test_what_a_node_says_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, message: m.Message
) -> None:
    from clusterenv.transport.arena import Command

    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        theatre.puppets[0].lie = lambda asked, frames: [[m.encode(message)]]
        head.arena.want += 1
        head.node.request(Command.STEP, [0, 1], None)
        head.node.listen()
        (loss,) = head.node.losses()
        assert loss.cause.strip().endswith("node")
        assert loss.cause.strip().isprintable()
        assert all(each.strip().isprintable() for each in caplog.messages)


@pytest.mark.threat("T20")
@pytest.mark.parametrize("peer", [b"peer 0", b"peer 9"])
def test_what_is_no_message_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, peer: bytes
) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        theatre.arrive(peer, [msgspec.msgpack.encode({"type": STEERING.strip()})])
        head.node.listen()
        assert "Invalid value 'node'" in caplog.text
        assert "Invalid value 'node'" in theatre.refusals(peer)[0]
        assert all(each.isprintable() for each in (*caplog.messages, *theatre.refusals(peer)))
        assert all(loss.cause.isprintable() for loss in head.node.losses())


@pytest.mark.parametrize("peer", [b"peer 0", b"peer 9"])
def test_a_message_that_was_cut_off_costs_nobody(monkeypatch: pytest.MonkeyPatch, peer: bytes) -> None:
    """Its sender was interrupted, and sends it again."""
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        theatre.arrive(peer, [m.encode(m.Leave(reason="late")), bytes(JOIN_BELOW), CUT_OFF])
        head.node.listen()
        assert head.node.losses() == []
        assert theatre.refusals(peer) == []


def test_what_a_refused_node_has_left_of_another_head_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers have numbers that this head gives to requests of its own."""
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        stale = Puppet(0)
        theatre.puppets.append(stale)
        stale.peer = b"peer 9"
        theatre.arrive(stale.peer, [m.encode(stale.hello(theatre.run, incarnation="old", fresh=False))])
        for number in range(1, 10):
            theatre.arrive(stale.peer, [m.encode(m.Answer(number=number, error="late"))])
        theatre.arrive(stale.peer, [m.encode(m.Lost(worker=0, life=0, cause="late"))])
        theatre.arrive(stale.peer, [m.encode(m.Leave(reason="late"))])
        head.node.listen()
        assert theatre.refusals(stale.peer) == [
            "it holds what another head of this run has left, and has to begin anew"
        ]
        assert head.node.losses() == []
        assert head.node.alive(0)


def test_who_cannot_be_understood_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a node of a later version, with words that this head does not know. It would wait for an answer."""
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        theatre.puppets.append(Puppet(9))
        theatre.arrive(b"peer 9", [b"\xc1"])
        head.node.listen()
        (reason,) = theatre.refusals(b"peer 9")
        assert reason.startswith("it cannot be understood here (a message arrived that is none of ours: ")
        assert reason.endswith("). Install the same version on all hosts.")
        assert head.node.losses() == []


class Babbling(Theatre):
    """The first never stops to send what is no message; the second comes after a while, and so does another first.

    Args:
        patient: whether another comes.
    """

    def __init__(self, *, patient: bool) -> None:
        super().__init__()
        self.patient, self.words = patient, 0

    def start(self, job: NodeJob) -> None:
        super().start(job)
        self.late = self._waiting.pop()

    def receive(self, limit_s: float) -> tuple[bytes, list[Any]] | None:
        if self._waiting or self.words >= 1_000:
            return super().receive(limit_s)
        self.words += 1
        if self.words == 1_000 and self.patient:
            self._waiting.append(self.late)
            arrives_again(self, 0, b"peer 7")
        return b"peer 0", [b"garbage"]


def test_who_never_stops_sending_garbage_is_turned_away_and_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While others are waited for, which may take hours. Somebody else may have its place."""
    theatre = Babbling(patient=True)
    monkeypatch.setattr(puppets, "Tcp", Join)  # nodes are started by hand, so the head waits on
    with on_stage(monkeypatch, theatre) as head:
        assert theatre.words == 1_000
        assert [reason[:27] for reason in theatre.refusals(b"peer 0")] == ["it sent what is no message:"]
        assert not head.node._joining._goodbyes
        assert sum("a message of a node was dropped" in each for each in caplog.messages) == 1
        assert [host.peer for host in head.node._joining.members] == [b"peer 1", b"peer 7"]
        assert head.node.losses() == []


def test_a_launcher_whose_node_sends_garbage_at_once_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "a node could not join: puppet0: it sent what is no message: "
    with pytest.raises(LaunchError, match=says), on_stage(monkeypatch, Babbling(patient=False)):
        pass


@pytest.mark.fault("F42")
@pytest.mark.parametrize(("kind", "more"), [(Join, 100 + 24), (Tcp, 3 * 100 + 24), (Slurm, 100 + 24)])
def test_too_few_descriptors_for_so_many_nodes(monkeypatch: pytest.MonkeyPatch, kind: Any, more: int) -> None:
    """Before anything is started. Nodes that are processes of the head take more of them."""
    limit = 50
    monkeypatch.setattr("resource.getrlimit", lambda which: (limit, limit))
    theatre: Any = Theatre()
    says = r"100 nodes need (\d+) file descriptors, but this process may have 50 open files\. Raise the limit"
    with pytest.raises(LaunchError, match=says) as caught:
        joining.Joining(kind(nodes=100), theatre).gather(100)
    needed = int(str(caught.value).split()[3])
    assert more < needed <= more + len(os.listdir("/proc/self/fd"))
    assert theatre.run == ""


@pytest.mark.fault("F13")
def test_too_few_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Theatre()
    theatre.hellos[1] = {"incarnation": "incarnation 0"}  # the first once more, over another connection
    says = r"1 of 2 nodes were ready within 0 s\. puppets"
    with pytest.raises(WorkersMissing, match=says) as caught, on_stage(monkeypatch, theatre, wait_s=0.2):
        pass
    assert (caught.value.arrived, caught.value.expected) == (1, 2)


@pytest.mark.fault("F14")
def test_one_too_many_is_refused_politely(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        for index, place in ((0, b"peer 8"), (2, b"peer 9")):
            arrives_again(theatre, index, place)
            head.node.listen()
            assert theatre.refusals(place) == ["all 2 nodes are there already"]
        assert head.node.losses() == []


def leaves(theatre: Theatre, index: int) -> None:
    """This node says goodbye."""
    puppet = theatre.puppets.pop(index)
    theatre.arrive(puppet.peer, [m.encode(m.Leave(reason="signal SIGTERM"))])


def test_a_node_that_its_engine_starts_again_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has noticed that the first is gone; the engine is asked for nothing."""
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        first = theatre.puppets.pop(0)
        arrives_again(theatre, 0, b"peer 7")
        head.node.listen()
        assert [(loss.worker, loss.cause) for loss in head.node.losses()] == [
            (0, f"its node {first.hello('').name} left: another process has taken its place")
        ]
        head.node.replace(0, [None, None])
        assert head.node.ready([0], 30.0) == {}
        assert head.node.alive(0)
        assert head.node.alive(1)
        assert theatre.restarted == []


def test_a_node_may_be_back_before_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has said goodbye, and its engine has started it again while the head was busy with other things."""
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        leaves(theatre, 1)
        arrives_again(theatre, 1, b"peer 7")
        head.node.listen()
        assert [loss.worker for loss in head.node.losses()] == [1]
        assert theatre.refusals(b"peer 7") == []
        head.node.replace(1, [None, None])
        assert head.node.ready([1], 30.0) == {}
        assert head.node.alive(1)
        assert theatre.restarted == []


def test_a_node_that_came_back_and_is_gone_again_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        theatre.puppets.pop(1)
        arrives_again(theatre, 1, b"peer 7")
        head.node.listen()
        theatre.puppets.pop()
        with pytest.raises(LaunchError, match="its launcher cannot start it again"):
            head.node.replace(1, [None, None])
        assert theatre.restarted == [1]


def test_a_node_that_comes_and_leaves_before_it_has_slots_leaves_its_place_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        leaves(theatre, 1)
        head.node.listen()
        assert [loss.worker for loss in head.node.losses()] == [1]
        head.node.replace(1, [None, None], patient=True)
        arrives_again(theatre, 1, b"peer 7")
        theatre.arrive(b"peer 7", [m.encode(m.Leave(reason="signal SIGINT"))])
        head.node.listen()
        assert head.node.losses() == []
        theatre.puppets.pop()
        arrives_again(theatre, 1, b"peer 8")
        assert head.node.ready([1], 30.0) == {}
        assert theatre.refusals(b"peer 8") == []
        assert head.node.alive(1)


def test_a_newcomer_whose_connection_is_gone_is_not_given_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        leaves(theatre, 1)
        arrives_again(theatre, 1, b"peer 7")
        head.node.listen()
        assert [loss.worker for loss in head.node.losses()] == [1]
        head.node.replace(1, [None, None], patient=True)
        theatre.puppets.pop()  # without a word
        arrives_again(theatre, 1, b"peer 8")
        assert head.node.ready([1], 30.0) == {}
        assert [kind for peer, kind in theatre.told if peer == b"peer 7" and isinstance(kind, m.Build)] == []


def test_a_newcomer_that_has_waited_for_a_place_is_not_taken_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has slots nobody looks whether it is heard."""
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        leaves(theatre, 1)
        arrives_again(theatre, 1, b"peer 7")
        head.node.listen()
        door = head.node._joining
        (waiting,) = door._new
        waiting.heard_s -= 60.0
        began = time.monotonic()
        assert door.newcomer(head.node._crew.hosts[1]) is waiting
        assert waiting.heard_s >= began


def test_a_node_that_cannot_make_its_memory_again_is_given_up_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        leaves(theatre, 1)
        arrives_again(theatre, 1, b"peer 7")
        theatre.puppets[-1].lie = no_memory
        head.node.listen()
        head.node.losses()
        head.node.replace(1, [None, None])
        with pytest.raises(LaunchError, match="could not make memory for its environments: it has too little"):
            head.node.ready([1], 30.0)
        head.node.listen()  # what it said is not said again
        assert head.node.alive(0)


def no_memory(message: m.Message, frames: Any) -> list[Any]:
    """What a node says that is too small."""
    if not isinstance(message, m.Bind):
        return [frames]
    return [[m.encode(m.Answer(number=message.number, error="it has too little"))]]


@pytest.mark.parametrize("times", [0, 3])
def test_an_interrupt_while_nodes_are_taken_leave_of_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:

        def interrupted(limit_s: float) -> None:
            nonlocal times
            times -= 1
            if times < 0:
                raise KeyboardInterrupt

        monkeypatch.setattr(theatre, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            head.node.close(5.0)
        assert theatre.closed


class Interrupted(Theatre):
    """Ctrl-C while its nodes are ended, after they have been taken leave of."""

    def close(self, limit_s: float | None = None) -> None:
        if limit_s is not None:  # as a launcher
            raise KeyboardInterrupt
        super().close()


def test_an_interrupt_while_nodes_are_ended_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Interrupted()
    with on_stage(monkeypatch, theatre) as head:
        with pytest.raises(KeyboardInterrupt):
            head.node.close(0.0)
        assert theatre.closed


def test_a_node_that_comes_back_is_asked_again_what_it_owes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection, the same process: nothing is lost, and what was on its way goes out again."""
    from clusterenv.transport.arena import Command

    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        puppet = theatre.puppets[0]
        puppet.lie = lambda message, frames: []
        head.arena.want += 1
        head.node.request(Command.STEP, [0, 1], None)
        assert head.node.wait([0, 1], 0.05) == [0]
        puppet.lie, puppet.peer = None, b"peer 7"
        theatre.arrive(b"peer 7", [m.encode(puppet.hello(theatre.run))])
        assert head.node.wait([0, 1], 30.0) == []
        assert head.node.losses() == []
        steps = [message for message in puppet.heard if isinstance(message, m.Step)]
        assert len(steps) == 2
        assert steps[0] == steps[1], "the same number: a real node would take it once"


@pytest.mark.threat("T11")
@pytest.mark.fault("F15")
def test_a_node_that_was_given_up_may_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        puppet = theatre.puppets[0]
        theatre.arrive(puppet.peer, [b"\xc1"])
        head.node.listen()
        assert [loss.worker for loss in head.node.losses()] == [0]
        puppet.peer = b"peer 7"
        theatre.arrive(b"peer 7", [m.encode(puppet.hello(theatre.run))])
        head.node.listen()
        head.node.listen()
        assert theatre.refusals(b"peer 7") == ["it was silent for too long and has been replaced"]


def test_nodes_that_were_lost_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """But long enough that those which come back late are told why they have to go."""
    monkeypatch.setattr(joining, "_REMEMBERED", 1)
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        for number in range(8):
            theatre.puppets = [puppet for puppet in theatre.puppets if puppet.index != 0]
            arrives_again(theatre, 0, b"peer %d" % (10 + number))
            head.node.listen()
            head.node.replace(0, [None, None])
            assert head.node.ready([0], 5.0) == {}
            head.node.losses()
        door = head.node._joining
        # Two are here. Of eight that were lost three are remembered, and the one whose successor came in last.
        assert len(door._hosts) == len(door._peers) == 2 + 3 + 1
        for number, known in ((10, False), (16, True)):
            late = Puppet(0)
            theatre.arrive(b"late", [m.encode(late.hello(theatre.run, incarnation=f"of {b'peer %d' % number!r}"))])
            head.node.listen()
            assert ("it was silent for too long and has been replaced" in theatre.refusals(b"late")) is known
            assert theatre.refusals(b"late")


def test_a_node_is_given_up_only_if_it_is_silent_at_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that was stopped finds all silent at its first look: what they have sent is not read yet."""
    theatre = Theatre()
    with on_stage(monkeypatch, theatre) as head:
        for said in (True, False):
            for host in head.node._crew.hosts:
                host.heard_s -= 60.0
            head.node._look_after_hosts(time.monotonic())
            assert head.node.losses() == []
            for puppet in theatre.puppets[: 2 if said else 1]:
                theatre.arrive(puppet.peer, [m.encode(m.Beat(progress=[], seen=0))])
            head.node.listen()
            head.node._look_after_hosts(time.monotonic())
            assert [loss.worker for loss in head.node.losses()] == ([] if said else [1])


def test_a_silent_node_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterenv.transport.arena import Command

    theatre = Theatre()
    with on_stage(monkeypatch, theatre, silence_s=2.0) as head:
        theatre.puppets[0].lie = lambda message, frames: []
        head.arena.want += 1
        head.node.request(Command.STEP, [0, 1], None)
        theatre.arrive(theatre.puppets[1].peer, [m.encode(m.Beat(progress=[], seen=0))])
        assert head.node.wait([0], 30.0) == []
        losses = head.node.losses()
        assert losses[0].cause.startswith("its node puppet0 has been silent for ")


class SlowGoodbye(Theatre):
    """Its clock runs as fast as the head waits. The nodes in `late` say goodbye at their times, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.late: dict[int, float] = {}
        self.limits: list[float] = []  # those of the launcher
        self.interrupted_s = float("inf")

    def receive(self, limit_s: float) -> tuple[bytes, list[Any]] | None:
        self.now_s += 0.0 if self._waiting else limit_s
        if self.now_s > self.interrupted_s:
            raise KeyboardInterrupt
        for index, at_s in list(self.late.items()):
            if self.now_s >= at_s:
                self.arrive(self.puppets[index].peer, [m.encode(m.Leave(reason="told to"))])
                del self.late[index]
        return super().receive(limit_s)

    def close(self, limit_s: float | None = None) -> None:
        super().close()
        if limit_s is not None:
            self.limits.append(limit_s)

    def monotonic(self) -> float:
        return self.now_s


def closing(monkeypatch: pytest.MonkeyPatch, theatre: SlowGoodbye) -> joining.Joining:
    monkeypatch.setattr(joining, "Hub", lambda keys, host, port, **options: theatre)
    monkeypatch.setattr(joining, "time", theatre)
    door = joining.Joining(Tcp(nodes=2), theatre)
    door.gather(4)
    return door


def test_without_a_limit_nodes_take_as_long_as_they_need_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = SlowGoodbye()
    door = closing(monkeypatch, theatre)
    theatre.late = {0: 1.0, 1: 86_400.0}
    door.close(None)
    assert theatre.now_s == pytest.approx(86_400.0, abs=1.0)
    told = [message.limit_s for _, message in theatre.told if isinstance(message, m.Close)]
    assert len(told) == 2
    assert min(told + theatre.limits) > 1e8


def test_a_limit_holds_for_nodes_that_close(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = SlowGoodbye()
    door = closing(monkeypatch, theatre)
    theatre.late = {0: 1.0, 1: 86_400.0}
    door.close(3.0)
    assert theatre.now_s == pytest.approx(3.0, abs=0.5)
    assert theatre.limits == [0.0]


def test_a_node_that_is_killed_while_it_closes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = SlowGoodbye()
    door = closing(monkeypatch, theatre)
    theatre.late = {0: 1.0}
    del theatre.puppets[1]
    door.close(None)
    assert theatre.now_s < 30.0


def test_ctrl_c_ends_a_wait_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    theatre = SlowGoodbye()
    door = closing(monkeypatch, theatre)
    theatre.interrupted_s = 100.0
    with pytest.raises(KeyboardInterrupt):
        door.close(None)
    assert theatre.closed
    assert theatre.limits == [5.0]


def test_nodes_that_were_started_by_hand_keep_their_words() -> None:
    with pytest.raises(ConfigError, match=r"'join:nodes=2' keeps no logs: .* stays on their machines"):
        joining.Joining(Join(nodes=2)).logs()
