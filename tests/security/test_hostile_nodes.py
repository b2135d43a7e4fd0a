"""A node that has the keys and sends nonsense: it is given up, by a named cause, and nobody else is."""

from __future__ import annotations

import contextlib
import pathlib
import pickle
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from clusterenv import ClusterEnvError, WorkerLost, make_vec
from clusterenv.node.base import Message
from clusterenv.node.records import CODEC
from clusterenv.transport.arena import Command
from clusterenv.wire import messages as m
from clusterenv.wire.frames import frame_of
from clusterenv.worker.loop import Reply
from clusterenv.worker.report import Failure, Report
from tests.node.puppets import Frames, Head, Theatre, on_stage
from tests.node.tampering import Wire
from tests.node.worlds import COUNTING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = 30.0


@pytest.fixture
def theatre() -> Theatre:
    return Theatre()


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, theatre: Theatre) -> Iterator[Head]:
    with on_stage(monkeypatch, theatre, silence_s=2 * LIMIT_S) as staged:
        yield staged


def step(head: Head) -> None:
    node, arena = head.node, head.arena
    arena.want += 1
    node.request(Command.STEP, [0, 1], None)
    assert node.wait([0, 1], LIMIT_S) == []


def with_header(frames: Frames, **changes: Any) -> Frames:
    """The same frames below another header."""
    header = msgspec.msgpack.decode(frames[0])
    return [msgspec.msgpack.encode({**header, **changes}), *frames[1:]]


def report(**fields: Any) -> bytes:
    made = Report()
    for name, value in fields.items():
        setattr(made, name, value)
    return CODEC.pack(made)


def failure(slot: Any = 0, error: Any = None, text: Any = "") -> Failure:
    return Failure(slot, "step", ValueError("x") if error is None else error, text, recovered=True)


def some(frames: Frames, rows: list[int]) -> Frames:
    return with_header([frames[0], bytes(frame_of(np.array(rows, np.int32))), *frames[1:]], whole=False)


# Each takes the frames of rows that a node would send: the header, request numbers, observations, rewards and flags.
NONSENSE: dict[str, Callable[[Frames], Frames]] = {
    "no frames": lambda frames: [],
    "an empty header": lambda frames: [b"", *frames[1:]],
    "a header that is none": lambda frames: [b"\xc1garbage", *frames[1:]],
    "a depth bomb": lambda frames: [b"\x91" * 50_000, *frames[1:]],
    "an unknown tag": lambda frames: with_header(frames, type="Exec"),
    "a message of the head": lambda frames: [m.encode(m.Close(limit_s=0.0))],
    "an extra field": lambda frames: with_header(frames, extra=1),
    "no rows": lambda frames: frames[:1],
    "a frame less": lambda frames: frames[:-1],
    "a frame more": lambda frames: [*frames, b""],
    "4,000 frames": lambda frames: [*frames, *([b"x"] * 4_000)],
    "10,000 frames": lambda frames: [*frames, *([b"x"] * 10_000)],
    "short observations": lambda frames: [*frames[:2], frames[2][:-1], *frames[3:]],
    "long observations": lambda frames: [*frames[:2], frames[2] + b"\x00", *frames[3:]],
    "observations of another size": lambda frames: [*frames[:2], frames[2] * 2, *frames[3:]],
    "a hundred megabytes": lambda frames: [*frames[:2], bytes(10**8), *frames[3:]],
    "frames in another order": lambda frames: [frames[0], *frames[:0:-1]],
    "a row beyond its own": lambda frames: some(frames, [0, 2]),
    "a row before its own": lambda frames: some(frames, [-1, 1]),
    "a row far beyond": lambda frames: some(frames, [0, 2**31 - 1]),
    "rows of half a number": lambda frames: with_header([frames[0], b"\x00\x00\x00", *frames[1:]], whole=False),
    "a report that is none": lambda frames: with_header(frames, report=b"\xc1"),
    "a report of another kind": lambda frames: with_header(frames, report=CODEC.pack(5)),
    "a reply for a report": lambda frames: with_header(frames, report=CODEC.pack(Reply())),
    "a report of numbers": lambda frames: with_header(frames, report=report(infos=5)),
    "infos that are no pairs": lambda frames: with_header(frames, report=report(infos=[1, 2])),
    "an info that is no dictionary": lambda frames: with_header(frames, report=report(infos=[(0, 7)])),
    "infos of nobody": lambda frames: with_header(frames, report=report(infos=[(10**9, {})])),
    "infos of no slot": lambda frames: with_header(frames, report=report(infos=[("a", {})])),
    "infos of another node": lambda frames: with_header(frames, report=report(infos=[(3, {"poison": 1})])),
    "an observation of another node": lambda frames: with_header(frames, report=report(observations=[(3, 1)])),
    "failures that are none": lambda frames: with_header(frames, report=report(failures=["boom"])),
    "a failure of another node": lambda frames: with_header(frames, report=report(failures=[failure(3)])),
    "a failure without an error": lambda frames: with_header(frames, report=report(failures=[failure(0, "no")])),
    "a failure with a number for words": lambda frames: with_header(
        frames, report=report(failures=[failure(0, None, 7)])
    ),
    "infos of a block": lambda frames: with_header(frames, report=report(block_infos=[(np.arange(9), {})])),
}


def check_only_the_first_is_lost(head: Head, theatre: Theatre, says: str) -> None:
    node = head.node
    (loss,) = node.losses()
    assert loss.worker == 0
    assert loss.cause.startswith("its node puppet0 broke the protocol: ")
    assert says in loss.cause
    assert [node.alive(0), node.alive(1)] == [False, True]
    assert len(theatre.refusals(b"peer 0")) == 1, "it is told to go"
    assert theatre.refusals(b"peer 1") == []


@pytest.mark.threat("T07")
@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_in_place_of_rows(head: Head, theatre: Theatre, nonsense: Callable[[Frames], Frames]) -> None:
    """The first node is given up at once. The second and its rows do not notice."""
    node, arena = head.node, head.arena
    theatre.puppets[0].lie = lambda message, frames: [nonsense(frames)]
    began = time.monotonic()
    step(head)
    assert time.monotonic() - began < LIMIT_S
    check_only_the_first_is_lost(head, theatre, "")
    assert arena.observation[0][2:].tolist() == [[2, 1], [3, 1]]
    assert arena.reward.tolist()[2:] == [1, 1]
    assert not node.reports().infos
    heard = len(theatre.puppets[0].heard)
    step(head)
    assert node.losses() == []
    assert len(theatre.puppets[0].heard) == heard, "nothing is sent to it any more"


def test_true_rows_are_taken(head: Head) -> None:
    node, arena = head.node, head.arena
    step(head)
    assert node.losses() == []
    assert arena.observation[0].tolist() == [[slot, 1] for slot in range(4)]


@pytest.mark.threat("T09")
def test_what_a_lost_node_still_sends_changes_nothing(head: Head, theatre: Theatre) -> None:
    """Rows, losses and answers of somebody who was given up, though the numbers fit."""
    node, arena = head.node, head.arena
    theatre.puppets[0].lie = lambda message, frames: [
        [b"\xc1"],
        frames,
        [m.encode(m.Lost(worker=0, life=0, cause="x"))],
    ]
    step(head)
    assert len(node.losses()) == 1
    node.listen()
    assert node.losses() == []
    assert arena.observation[0][:2].tolist() == [[0, 0], [0, 0]]
    assert (arena.have[:2] != arena.want[:2]).all()


ANSWERS: dict[str, bytes] = {
    "nothing that can be read": b"\xc1",
    "a number": CODEC.pack(7),
    "a report": CODEC.pack(Report()),
    "a list": CODEC.pack([1, 2, 3]),
    "a dictionary": CODEC.pack({0: 7}),
    "a reply with a number for words": CODEC.pack(Reply(error=7)),  # type: ignore[arg-type]
    "a reply with words for a number": CODEC.pack(Reply(request="x")),  # type: ignore[arg-type]
    "a reply with another value": CODEC.pack(Reply(3)),
    "a reply with too many values": CODEC.pack(Reply(list(range(50)))),
    "a failure that is none": CODEC.pack(Reply(failure="boom")),  # type: ignore[arg-type]
    "a failure of another node": CODEC.pack(Reply(failure=failure(3))),
    "a report of another node": CODEC.pack(Reply(Report(infos=[(3, {})]))),
}


@pytest.mark.threat("T07")
@pytest.mark.parametrize(
    "message", [Message("call", ([0, 1], "double", (1.0,), {})), Message("reset", ({}, None, None))]
)
@pytest.mark.parametrize("value", ANSWERS.values(), ids=ANSWERS.keys())
def test_nonsense_in_place_of_a_reply(head: Head, theatre: Theatre, message: Message, value: bytes) -> None:
    node = head.node
    theatre.puppets[0].lie = lambda request, frames: [with_header(frames, value=value)]
    node.post({0: message, 1: message})
    assert list(node.replies([0, 1], LIMIT_S)) == [1]
    check_only_the_first_is_lost(head, theatre, "")


@pytest.mark.threat("T07")
@pytest.mark.parametrize("request_kind", [m.Build, m.Bind])
@pytest.mark.parametrize("value", ANSWERS.values(), ids=ANSWERS.keys())
def test_nonsense_at_the_start(
    monkeypatch: pytest.MonkeyPatch, theatre: Theatre, request_kind: type[m.Request], value: bytes
) -> None:
    def lie(message: m.Message, frames: Frames) -> list[Frames]:
        return [with_header(frames, value=value) if isinstance(message, request_kind) else frames]

    theatre.puppets[0].lie = lie
    began = time.monotonic()
    with pytest.raises(ClusterEnvError, match="puppet0"), on_stage(monkeypatch, theatre):
        pass
    assert time.monotonic() - began < LIMIT_S
    assert theatre.closed


STRAY: dict[str, Any] = {
    "an answer that nobody asked for": m.Answer(number=10**9, value=CODEC.pack(Reply())),
    "an answer with number 0": m.Answer(number=0),
    "rows that nobody asked for": m.Rows(number=10**9),
    "a loss of a worker that it does not have": m.Lost(worker=7, life=0, cause="x"),
    "a loss of another life": m.Lost(worker=0, life=99, cause="x"),
    "a beat of too many": m.Beat(progress=[1] * 4000, seen=2**62),
}


@pytest.mark.threat("T11")
@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY.keys())
def test_what_nobody_asked_for_changes_nothing(head: Head, theatre: Theatre, stray: Any) -> None:
    node, arena = head.node, head.arena
    theatre.puppets[0].lie = lambda message, frames: [[m.encode(stray)], frames, [m.encode(stray)]]
    step(head)
    step(head)
    assert node.losses() == []
    assert arena.observation[0].tolist() == [[slot, 1] for slot in range(4)]


@pytest.mark.threat("T07")
def test_a_hundred_thousand_beats_between_two_rows(head: Head, theatre: Theatre) -> None:
    """As many as a node could send in a second. They are read, and hold up nobody; each is answered at once."""
    beats = [[m.encode(m.Beat(progress=[1], seen=number))] for number in range(100_000)]
    theatre.puppets[0].lie = lambda message, frames: [*beats, frames]
    step(head)
    assert head.node.losses() == []
    assert head.arena.observation[0].tolist() == [[slot, 1] for slot in range(4)]


@pytest.mark.threat("T09")
@pytest.mark.parametrize(("slot", "torn"), [(2, None), (0, 3)])
def test_a_loss_in_a_slot_of_another(head: Head, theatre: Theatre, slot: int, torn: int | None) -> None:
    """Slots 2 and 3 are those of the second node: the first can speak of its own only."""
    told = m.Lost(worker=0, life=0, cause="x", slot=slot, torn=torn)
    theatre.puppets[0].lie = lambda message, frames: [[m.encode(told)], frames]
    step(head)
    (loss,) = head.node.losses()
    assert loss.worker == 0
    assert "broke the protocol: worker 0 was lost in slot" in loss.cause


def test_a_node_that_leaves(head: Head, theatre: Theatre) -> None:
    node = head.node
    theatre.puppets[0].lie = lambda message, frames: [[m.encode(m.Leave(reason="signal SIGTERM"))]]
    step(head)
    (loss,) = node.losses()
    assert (loss.worker, loss.cause) == (0, "its node puppet0 left: signal SIGTERM")


def test_over_real_sockets_the_cause_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(make_vec(COUNTING, 1, cluster="tcp:nodes=1,workers=1", on_loss="raise")) as envs:
        envs.reset(seed=1)
        wire = Wire(monkeypatch)
        wire.rule(m.Rows, lambda message, frames: [[b"\xc1"]])
        with pytest.raises(
            WorkerLost, match=r"its node \S+ broke the protocol: a message arrived that is none of ours"
        ):
            envs.step([0])
        assert wire.tampered == 1


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return pathlib.Path.touch, (self.path,)


@pytest.fixture
def target(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "touched"


@pytest.fixture
def bombs(target: pathlib.Path) -> list[bytes]:
    made = [pickle.dumps(Bomb(target), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for bomb in made:
        pickle.loads(bomb)
        assert target.exists(), "the bombs work"
        target.unlink()
    return made


PLACES: dict[str, Callable[[Frames, bytes], Frames]] = {
    "the whole message": lambda frames, bomb: [bomb],
    "the header": lambda frames, bomb: [bomb, *frames[1:]],
    "the last frame": lambda frames, bomb: [*frames[:-1], bomb],
    "the second frame": lambda frames, bomb: [frames[0], bomb, *frames[2:]],
    "an answer": lambda frames, bomb: with_header(frames, value=bomb),
    "a value": lambda frames, bomb: with_header(frames, value=CODEC.pack(Reply(bomb))),
    "an error": lambda frames, bomb: with_header(frames, error=bomb.decode("latin-1")),
    "a report": lambda frames, bomb: with_header(frames, report=bomb),
    "an info": lambda frames, bomb: with_header(frames, report=report(infos=[(0, {"a": bomb})])),
    "an observation": lambda frames, bomb: with_header(frames, report=report(observations=[(0, bomb)])),
}


@pytest.mark.threat("T01")
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_pickles_that_a_node_sends_run_nothing(
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[Frames, bytes], Frames],
    bombs: list[bytes],
    target: pathlib.Path,
) -> None:
    for bomb in bombs:
        for kind in (m.Build, m.Bind, m.Step, m.Post):
            theatre = Theatre()

            def lie(message: m.Message, frames: Frames, kind: Any = kind, bomb: bytes = bomb) -> list[Frames]:
                return [place(frames, bomb) if isinstance(message, kind) else frames]

            theatre.puppets[0].lie = lie
            with contextlib.suppress(ClusterEnvError), on_stage(monkeypatch, theatre) as head:
                step(head)
                head.node.post({0: Message("call", ([0, 1], "double", (1.0,), {}))})
                head.node.replies([0], LIMIT_S)
    assert not target.exists()
