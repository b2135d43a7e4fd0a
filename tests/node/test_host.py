"""The head's view of a node: what it is asked, and what an interrupt leaves of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.cluster.requests import Answering, Turn
from clusterenv.node.host import Host
from clusterenv.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Sequence


class Sent:
    """A socket that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[m.Request] = []

    def send(self, peer: bytes, frames: Sequence[Any]) -> bool:
        message = m.decode_from_head(frames)
        assert isinstance(message, m.Request)
        self.messages.append(message)
        return True


def ignore(answer: m.Answer, frames: Sequence[Any]) -> None:
    """Take an answer."""


def asked(host: Host) -> int:
    return host.ask(m.Post, ignore, worker=0, message=b"")


def interrupt(*arguments: Any) -> Any:
    raise KeyboardInterrupt


def test_a_request_that_is_interrupted_before_it_goes_out_leaves_the_node_all_ears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = Sent()
    host = Host(0, sent, b"peer", None)  # type: ignore[arg-type]
    asked(host)
    with monkeypatch.context() as broken:
        broken.setattr(m, "encode", interrupt)
        with pytest.raises(KeyboardInterrupt):
            asked(host)
    asked(host)
    answering: Answering[str] = Answering()
    turns = [answering.arrived(each.number, each.settled, each.arrived) for each in sent.messages]
    assert turns == [Turn.NEW, Turn.NEW]


def test_what_is_settled_is_told_with_the_next_request() -> None:
    sent = Sent()
    host = Host(0, sent, b"peer", None)  # type: ignore[arg-type]
    for _ in range(2):
        host.settle(asked(host))
    asked(host)
    assert [message.settled for message in sent.messages] == [0, 1, 2]
