"""The check for leaks sees what it has to."""

from __future__ import annotations

import zmq

from tests.conftest import _belongings, _left
from tests.zoo import wait_until


def test_a_context_of_libzmq_that_stays_open_is_seen() -> None:
    before = _belongings()
    with zmq.Context() as context, context.socket(zmq.PAIR):
        # A thread of libzmq has its name a moment after it has begun.
        wait_until(lambda: any("ZMQbg" in name for name in _left(before).get("threads", ())), limit_s=10.0)
