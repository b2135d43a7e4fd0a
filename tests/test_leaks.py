"""The check for leaks sees what it has to."""

from __future__ import annotations

import zmq

from tests.conftest import _belongings, _left


def test_a_context_of_libzmq_that_stays_open_is_seen() -> None:
    before = _belongings()
    with zmq.Context() as context, context.socket(zmq.PAIR):
        left = _left(before)
    assert any("ZMQbg" in name for name in left["threads"])
