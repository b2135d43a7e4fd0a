"""A head that has the keys and sends nonsense: a node carries out nothing that it should not, and says so."""

from __future__ import annotations

import pathlib
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from clusterenv.errors import ProtocolError
from clusterenv.node.records import CODEC, fragment_spec_to_data
from clusterenv.node.service import Service
from clusterenv.spaces import Leaf
from clusterenv.transport.fragments import FragmentSpec
from clusterenv.wire import messages as m
from clusterenv.wire.frames import frame_of
from tests.node.worlds import COUNTING
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 20.0


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return pathlib.Path.touch, (self.path,)


class Bench:
    """A service without a socket."""

    def __init__(self, imports: tuple[str, ...] = ("tests.node.worlds",)) -> None:
        self.sent: list[list[Any]] = []
        self.service = Service(self.sent.append, imports)
        self.number = 0

    def ask(self, kind: type[m.Request], /, *frames: Any, **fields: Any) -> int:
        """Send a request, and return its number."""
        self.number += 1
        request = kind(number=self.number, settled=self.number - 1, **fields)
        self.take([m.encode(request), *frames])
        return self.number

    def take(self, frames: list[Any]) -> None:
        """A message arrives, as bytes."""
        self.service.handle(m.decode_from_head(frames), frames[1:])

    def answer(self, number: int) -> Any:
        """Wait for the answer to a request."""
        found: list[Any] = []

        def looked() -> bool:
            self.service.progress()
            found[:] = [m.decode_from_node(frames) for frames in self.sent]
            return any(getattr(each, "number", None) == number for each in found)

        wait_until(looked, LIMIT_S)
        return next(each for each in found if getattr(each, "number", None) == number)

    def error_of(self, kind: type[m.Request], /, *frames: Any, **fields: Any) -> str:
        """The error that a request is answered with."""
        return str(self.answer(self.ask(kind, *frames, **fields)).error)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.service.close(0.0)
    vars(made).clear()  # the memory lives as long as somebody holds it


def order(env_id: Any = COUNTING, wrappers: Any = (), count: int = 1) -> bytes:
    return CODEC.pack(([[env_id, {}, list(wrappers)]], [0] * count, AutoresetMode.NEXT_STEP, True))


@pytest.fixture
def built(bench: Bench) -> Bench:
    assert not bench.error_of(m.Build, blocks=[(0, 1)], recipes=order(), limit_s=LIMIT_S)
    box, discrete = spaces.Box(0.0, 1e6, (2,), np.float32), spaces.Discrete(3)
    assert not bench.error_of(m.Bind, spaces=CODEC.pack((box, discrete, None)))
    return bench


REQUESTS: dict[str, tuple[type[m.Request], dict[str, Any]]] = {
    "Bind": (m.Bind, {"spaces": b""}),
    "Step": (m.Step, {"lock_step": True, "whole": True}),
    "Post": (m.Post, {"worker": 0, "message": CODEC.pack(("reset", ()))}),
    "Lend": (m.Lend, {"workers": [0], "name": "attach", "memory": 1, "message": CODEC.pack({})}),
    "Tell": (m.Tell, {"worker": 0, "order": None}),
    "Weights": (
        m.Weights,
        {"memory": 1, "offset": 0, "size": 0, "kind": "whole", "base": None, "version": (0, 1), "digest": b""},
    ),
    "Replace": (m.Replace, {"worker": 0, "seeds": [None], "limit_s": 1.0}),
}


@pytest.mark.threat("T12")
@pytest.mark.parametrize(("kind", "fields"), REQUESTS.values(), ids=REQUESTS.keys())
def test_before_anything_is_built_every_request_is_an_error(
    bench: Bench, kind: type[m.Request], fields: dict[str, Any]
) -> None:
    assert bench.error_of(kind, **fields)


BUILDS: dict[str, tuple[list[tuple[int, int]], bytes, str]] = {
    "nothing that can be read": ([(0, 1)], b"\xc1", "cannot be read"),
    "a number": ([(0, 1)], CODEC.pack(7), "in 4 parts, not as 7"),
    "no blocks": ([], order(), "cannot be built here"),
    "an empty block": ([(3, 3)], order(), "cannot be built here"),
    "a block backwards": ([(3, 1)], order(), "cannot be built here"),
    "blocks with a hole": ([(0, 1), (2, 3)], order(count=2), "cannot be built here"),
    "blocks that overlap": ([(0, 2), (1, 3)], order(count=3), "cannot be built here"),
    "too few recipes": ([(0, 5)], order(), "is for 1 slots, not for 5"),
    "a recipe that is not there": ([(0, 1)], CODEC.pack(([], [0], AutoresetMode.NEXT_STEP, True)), "has 0 recipes"),
    "no mode": ([(0, 1)], CODEC.pack(([[COUNTING, {}, []]], [0], "NextStep", True)), "autoreset mode 'NextStep'"),
    "an unknown environment": ([(0, 1)], order("NoSuch-v0"), "does not know the environment 'NoSuch-v0'"),
    "a module that is not on our command line": ([(0, 1)], order("os:Evil-v0"), "not told to import"),
    "another module": ([(0, 1)], order("antigravity:Evil-v0"), "not told to import"),
    "a path": ([(0, 1)], order("../../evil:Evil-v0"), "is no environment id"),
    "a number for an id": ([(0, 1)], order(7), "is no environment id"),
    "os.system for a wrapper": ([(0, 1)], order(wrappers=[["os:system", ["touch /tmp/x"], {}]]), "not told to import"),
    "what a module has imported": (
        [(0, 1)],
        order(wrappers=[["tests.node.worlds:time.sleep", [9], {}]]),
        "is not defined in that module",
    ),
    "a wrapper that is none": ([(0, 1)], order(wrappers=[["eval", [], {}]]), "is no reference to a wrapper"),
}


@pytest.mark.threat("T12")
@pytest.mark.parametrize(("blocks", "recipes", "says"), BUILDS.values(), ids=BUILDS.keys())
def test_bad_orders_to_build(bench: Bench, blocks: list[tuple[int, int]], recipes: bytes, says: str) -> None:
    assert says in bench.error_of(m.Build, blocks=blocks, recipes=recipes, limit_s=LIMIT_S)
    assert bench.service.descriptors() == [], "nothing was started"


def step_frames(number: int = 1, action: int = 1) -> list[Any]:
    return [frame_of(np.array([number], np.uint32)), frame_of(np.array([action], np.int64))]


SIZES = fragment_spec_to_data(FragmentSpec(1, 8, 1, 1, (), (), Leaf((), np.dtype("<i8")), 2, True))


@pytest.mark.threat("T12")
def test_a_node_goes_on_after_nonsense(built: Bench) -> None:
    """One node, one bad request after the other; then a good one."""
    post = {"worker": 0}
    assert "there is no message" in built.error_of(m.Post, **post, message=CODEC.pack(("exec", ("1",))))
    assert "there is no message" in built.error_of(m.Post, **post, message=CODEC.pack(("__init__", ())))
    assert built.error_of(m.Post, **post, message=b"\xc1")
    assert built.error_of(m.Post, **post, message=CODEC.pack(7))
    assert built.error_of(m.Post, worker=4000, message=CODEC.pack(("reset", ())))
    assert built.error_of(m.Tell, worker=4000, order=(1, True, True))
    assert built.error_of(m.Replace, worker=4000, seeds=[None], limit_s=1.0)
    assert built.error_of(m.Lend, workers=[4000], name="attach", memory=1, message=CODEC.pack({}))
    assert "no memory for" in built.error_of(m.Lend, workers=[0], name="exec", memory=1, message=CODEC.pack({}))
    for name, data in (("share", {**SIZES, "steps": 2**4000}), ("share", {**SIZES, "buffers": -1}), ("attach", {})):
        assert built.error_of(m.Lend, workers=[0], name=name, memory=1, message=CODEC.pack(data))
    assert built.error_of(m.Build, blocks=[(0, 1)], recipes=order(), limit_s=1.0), "it has been built"
    assert built.error_of(m.Weights, b"", memory=1, offset=0, size=0, kind="x", base=None, version=(0, 1), digest=b"")
    assert built.error_of(m.Step, lock_step=True, whole=True), "no frames"
    assert built.error_of(m.Step, *step_frames(), b"more", lock_step=True, whole=True)
    assert built.error_of(m.Step, b"\x00", b"\x00", lock_step=True, whole=True)
    beyond = frame_of(np.array([1], np.int32))
    assert built.error_of(m.Step, beyond, *step_frames(), lock_step=False, whole=False)
    before = frame_of(np.array([-1], np.int32))
    assert built.error_of(m.Step, before, *step_frames(), lock_step=False, whole=False)
    built.take([m.encode(m.Lose(worker=4000, cause="x"))])
    built.take([m.encode(m.Halt())])
    reset = built.answer(built.ask(m.Post, worker=0, message=CODEC.pack(("reset", ([0], [None], [{}])))))
    assert isinstance(reset, m.Answer)
    rows = built.answer(built.ask(m.Step, *step_frames(), lock_step=True, whole=True))
    assert isinstance(rows, m.Rows)


def test_what_is_no_message_is_refused(bench: Bench) -> None:
    for frames in ([], [b""], [b"\xc1"], [m.encode(m.Leave(reason="x"))]):
        with pytest.raises(ProtocolError):
            bench.take(frames)


@pytest.mark.threat("T01")
def test_pickles_that_a_head_sends_run_nothing(built: Bench, tmp_path: pathlib.Path) -> None:
    """In the header, in a frame, and in each field of bytes or text, of every request."""
    target = tmp_path / "touched"
    bomb = pickle.dumps(Bomb(target))
    pickle.loads(bomb)
    assert target.exists(), "the bomb works"
    target.unlink()
    with pytest.raises(ProtocolError):
        built.take([bomb])
    text = bomb.decode("latin-1")
    for kind, fields in REQUESTS.values():
        for name, value in fields.items():
            if isinstance(value, (bytes, str)):
                worse = text[:200] if isinstance(value, str) else bomb[:64] if name == "digest" else bomb
                assert built.error_of(kind, **{**fields, name: worse})
    assert built.error_of(m.Step, bomb, bomb, lock_step=True, whole=True)
    assert built.error_of(m.Step, *step_frames(), lock_step=True, whole=True, objects=bomb)
    assert built.error_of(m.Build, blocks=[(0, 1)], recipes=bomb, limit_s=1.0)
    assert built.error_of(m.Post, worker=0, message=CODEC.pack((bomb, (bomb,))))
    assert not target.exists()
