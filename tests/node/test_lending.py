"""Memory that nodes have counterparts of: what comes back must fit it."""

from __future__ import annotations

import types
from typing import Any

import pytest

from clusterenv.errors import ProtocolError
from clusterenv.node.lending import Lending
from clusterenv.node.parcels import PIECE_BYTES
from clusterenv.sync.codec import Encoded
from clusterenv.sync.versions import Version
from clusterenv.wire import messages as m
from clusterenv.worker.actor import Fragment


@pytest.mark.parametrize("steps", [17, 10**30])
def test_a_fragment_of_more_steps_than_it_has_room_for_is_refused(steps: int) -> None:
    lending = Lending()
    arena: Any = None
    made: Any = types.SimpleNamespace(spec=types.SimpleNamespace(buffers=1, steps=16))
    lending.fragments = made
    with pytest.raises(ProtocolError, match=r"a fragment of \d+ steps came; there is room for 16"):
        lending.take_fragment(arena, range(2), Fragment(0, steps), [])


class Taker:
    """A host that keeps who takes the answer to each piece of the weights."""

    name, lost, index = "taker", False, 0

    def __init__(self) -> None:
        self.memories = {7}
        self.giving: set[int] | None = None
        self.spoilt = 0
        self.handlers: list[Any] = []

    def ask(self, kind: type[m.Request], handler: Any, frames: Any, /, **fields: Any) -> int:
        self.handlers.append(handler)
        return len(self.handlers)


def given(lending: Lending, host: Any, number: int, size: int = 1) -> None:
    memory: Any = types.SimpleNamespace(number=7)
    lending.give(host, memory, Encoded("fp32", bytes(size), None, Version(0, number), b""))


def test_a_host_that_could_not_use_its_weights_is_known_to_have_none() -> None:
    lending, host = Lending(), Taker()
    given(lending, host, 1)
    host.handlers[0](m.Answer(number=1, error="they are damaged"), [])
    assert host.spoilt == 1
    assert host.giving is None


def test_weights_are_taken_when_every_piece_is() -> None:
    lending, host = Lending(), Taker()
    given(lending, host, 1, size=3 * PIECE_BYTES)
    first, *others = host.handlers
    for handler in others:
        handler(m.Answer(number=1), [])
    assert host.giving is not None
    first(m.Answer(number=1), [])
    assert host.giving is None
    assert host.spoilt == 0


def test_an_error_about_earlier_weights_says_nothing_of_the_newest() -> None:
    lending, host = Lending(), Taker()
    given(lending, host, 1)
    given(lending, host, 2)
    host.handlers[0](m.Answer(number=1, error="they are late"), [])
    assert host.giving is not None
    assert host.spoilt == 0
