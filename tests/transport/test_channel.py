"""A channel: whole messages or an error, whatever their size and whatever the other side does."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import signal
import socket
import struct
import sys
import termios
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ResultError
from clusterenv.transport.channel import Channel, ChannelClosed, ChannelTimeout, pack
from tests.transport.peers import other_process
from tests.zoo import Unpicklable, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 30.0
BIG = 40 * 2**20  # far more than the socket holds

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@contextlib.contextmanager
def pair() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    try:
        yield ours, other
    finally:
        ours.close()
        other.close()


@given(st.lists(VALUES, min_size=1, max_size=5))
def test_messages_arrive_whole_and_in_order(messages: list[Any]) -> None:
    with pair() as (one, two):
        for message in messages:
            one.send(message, LIMIT_S)
        assert [two.receive(LIMIT_S) for _ in messages] == messages


def test_both_directions_are_apart() -> None:
    with pair() as (one, two):
        one.send("to two", LIMIT_S)
        two.send("to one", LIMIT_S)
        assert (one.receive(LIMIT_S), two.receive(LIMIT_S)) == ("to one", "to two")


def test_a_big_message_arrives_whole() -> None:
    data = np.random.default_rng(0).integers(0, 256, BIG, dtype=np.uint8)
    with pair() as (one, two):
        thread = threading.Thread(target=one.send, args=(data, LIMIT_S))
        thread.start()
        received = two.receive(LIMIT_S)
        thread.join()
    assert np.array_equal(received, data)


def test_lambdas_and_closures_travel() -> None:
    factor = 3
    with pair() as (one, two):
        one.send(lambda value: factor * value, LIMIT_S)
        assert two.receive(LIMIT_S)(2) == 6


@pytest.mark.parametrize("message", [threading.Lock(), (value for value in [1]), {"a": [socket.socket]}, open])
def test_what_cannot_be_pickled_is_named(message: Any) -> None:
    with contextlib.suppress(ResultError):  # cloudpickle learns new tricks now and then; an error must be ours
        pack(message)
    with pytest.raises(ResultError, match=r"cannot be sent to another process: .*lock"):
        pack([threading.Lock()])


def test_an_error_that_cannot_be_printed_is_named() -> None:
    with pytest.raises(ResultError, match=r"cannot be sent to another process: Unprintable: \(it cannot be printed\)"):
        pack(Unpicklable())


def test_a_message_that_cannot_be_pickled_sends_nothing() -> None:
    with pair() as (one, two):
        with pytest.raises(ResultError):
            one.send(threading.Lock(), LIMIT_S)
        one.send("next", LIMIT_S)
        assert two.receive(LIMIT_S) == "next"


def test_nothing_in_time_is_a_timeout_and_nothing_is_lost() -> None:
    with pair() as (one, two):
        with pytest.raises(ChannelTimeout, match="0 of 8 bytes arrived in time"):
            two.receive(0.01)
        one.send("late", LIMIT_S)
        assert two.receive(LIMIT_S) == "late"


@pytest.mark.parametrize("limit_s", [4_294_967.5, 9.9e8])
def test_a_limit_of_months_is_not_over_at_once(limit_s: float) -> None:
    """Python counts the milliseconds of the first as 204."""
    with pair() as (one, two):
        late = threading.Timer(0.5, one.send, ("late", LIMIT_S))
        late.start()
        try:
            assert two.receive(limit_s) == "late"
        finally:
            late.join()


def test_half_a_message_in_time_is_a_timeout() -> None:
    ours, theirs = Channel.pair()
    with contextlib.closing(ours), theirs:
        theirs.sendall(struct.pack("<Q", 100) + b"x" * 40)
        with pytest.raises(ChannelTimeout, match="40 of 100 bytes arrived in time"):
            ours.receive(0.01)


def test_a_reader_that_does_not_read_is_a_timeout() -> None:
    with pair() as (one, _), pytest.raises(ChannelTimeout, match=f"of {BIG} bytes was not taken within 0.01 s"):
        one.send_packed(b"x" * BIG, 0.01)


def test_a_sleeping_reader_is_woken_for_a_big_message_only() -> None:
    with pair() as (one, two):
        reader = threading.Thread(target=two.receive_packed, args=(LIMIT_S,))
        one.send_waking(b"x", LIMIT_S, reader.start, pytest.fail)
        assert reader.ident is None
        assert two.receive_packed(LIMIT_S) == b"x"
        one.send_waking(b"x" * BIG, LIMIT_S, reader.start, pytest.fail)
        reader.join()


def test_two_who_send_big_messages_to_each_other_do_not_wait_for_ever() -> None:
    with pair() as (one, two):
        got: list[bytes] = []

        def send_and_receive() -> None:
            two.send_packed(b"2" * BIG, LIMIT_S)
            got.append(two.receive_packed(LIMIT_S))

        other = threading.Thread(target=send_and_receive)
        other.start()
        one.send_waking(b"1" * BIG, LIMIT_S, bool, lambda: got.append(one.receive_packed(LIMIT_S)))
        other.join()
        assert got == [b"2" * BIG, b"1" * BIG]


def test_a_reader_that_is_woken_and_does_not_read_is_a_timeout() -> None:
    with pair() as (one, _), pytest.raises(ChannelTimeout, match=f"of {BIG} bytes were not taken within 0.01 s"):
        one.send_waking(b"x" * BIG, 0.01, bool, pytest.fail)


def test_a_reader_that_goes_in_mid_message_is_gone() -> None:
    with pair() as (one, two), pytest.raises(ChannelClosed):
        one.send_waking(b"x" * BIG, LIMIT_S, two.close, bool)


def test_a_closed_peer_ends_the_wait_for_a_message() -> None:
    with pair() as (one, two):
        one.close()
        with pytest.raises(ChannelClosed, match="the other side is gone"):
            two.receive(None)


def test_a_peer_that_closes_in_mid_message_is_gone() -> None:
    ours, theirs = Channel.pair()
    with contextlib.closing(ours):
        theirs.sendall(struct.pack("<Q", 100) + b"x" * 40)
        theirs.close()
        with pytest.raises(ChannelClosed):
            ours.receive(LIMIT_S)


def test_messages_sent_before_the_close_still_arrive() -> None:
    with pair() as (one, two):
        one.send("last words", LIMIT_S)
        one.close()
        assert two.receive(LIMIT_S) == "last words"
        with pytest.raises(ChannelClosed):
            two.receive(LIMIT_S)


def test_sending_to_a_closed_peer_is_an_error() -> None:
    with pair() as (one, two):
        two.close()
        with pytest.raises(ChannelClosed):
            one.send("x", LIMIT_S)
        with pytest.raises(ChannelClosed):
            one.send_fd(0, LIMIT_S)


def test_a_channel_closed_here_is_an_error_too() -> None:
    with pair() as (one, _):
        one.close()
        one.close()
        for use in (
            lambda: one.send("x", LIMIT_S),
            lambda: one.receive(LIMIT_S),
            lambda: one.receive_fd(LIMIT_S),
            lambda: one.send_fd(0, LIMIT_S),
        ):
            with pytest.raises(ChannelClosed):
                use()


def test_a_descriptor_arrives_as_another_number_for_the_same_file() -> None:
    reader, writer = os.pipe()
    with pair() as (one, two):
        one.send_fd(writer, LIMIT_S)
        copy = two.receive_fd(LIMIT_S)
        os.close(writer)
        os.write(copy, b"through the copy")
        os.close(copy)
    assert os.read(reader, 100) == b"through the copy"
    os.close(reader)


def test_messages_and_descriptors_keep_their_order() -> None:
    with pair() as (one, two), open(os.devnull) as file:
        one.send("before", LIMIT_S)
        one.send_fd(file.fileno(), LIMIT_S)
        one.send("after", LIMIT_S)
        assert two.receive(LIMIT_S) == "before"
        os.close(two.receive_fd(LIMIT_S))
        assert two.receive(LIMIT_S) == "after"


def test_no_descriptor_in_time_is_a_timeout() -> None:
    with pair() as (_, two), pytest.raises(ChannelTimeout, match=r"no descriptor arrived within 0.01 s"):
        two.receive_fd(0.01)


def test_a_peer_that_closes_instead_of_a_descriptor_is_gone() -> None:
    with pair() as (one, two):
        one.close()
        with pytest.raises(ChannelClosed, match="the other side is gone"):
            two.receive_fd(LIMIT_S)


PEER = """
import socket, sys
from clusterenv.transport.channel import Channel
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
while (message := channel.receive(30.0)) is not None:
    channel.send([message, len(message)], 30.0)
"""


def test_two_processes_talk() -> None:
    channel, theirs = Channel.pair()
    with contextlib.closing(channel), theirs, other_process(PEER, theirs.fileno(), fds=(theirs.fileno(),)):
        for message in ("a", "b" * 10**6, ["c"] * 1000):
            channel.send(message, LIMIT_S)
            assert channel.receive(LIMIT_S) == [message, len(message)]
        channel.send(None, LIMIT_S)


def test_a_process_that_dies_is_noticed() -> None:
    channel, theirs = Channel.pair()
    with contextlib.closing(channel), theirs:
        with other_process("pass", theirs.fileno(), fds=(theirs.fileno(),)):
            theirs.close()
        with pytest.raises(ChannelClosed):
            channel.receive(LIMIT_S)


def unread(sock: Channel) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    return count[0]


@pytest.mark.parametrize("sent", [8, 20], ids=["after the header", "in mid-message"])
def test_an_interrupted_read_does_not_shift_the_messages_that_follow(sent: int) -> None:
    # Ctrl-C may come while half a message is read: the rest of it must not be taken for the next one.
    ours, theirs = Channel.pair()
    first, second = (struct.pack("<Q", len(pack(text))) + pack(text) for text in ("first" * 10, "second"))

    def interrupt() -> None:
        wait_until(lambda: unread(ours) == 0, limit_s=10.0)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with contextlib.closing(ours), theirs:
        theirs.sendall(first[:sent])
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            ours.receive(LIMIT_S)
        thread.join()
        theirs.sendall(first[sent:] + second)
        # Either the message is still there, or the channel says that it cannot be used any more.
        with contextlib.suppress(ChannelClosed):
            assert ours.receive(1.0) == "first" * 10
            assert ours.receive(1.0) == "second"


@pytest.mark.parametrize("size", [0, 3, 200_000])
def test_an_interrupt_between_any_two_steps_loses_no_byte(size: int) -> None:
    # A debugger's view: the receiving side is stopped after every line, as Ctrl-C may do it, and begun again.
    sent = [bytes([number]) * size for number in range(3)]
    with pair() as (one, two):

        def send() -> None:
            for message in sent:
                one.send_packed(message, LIMIT_S)

        thread = threading.Thread(target=send)
        thread.start()
        for message in sent:
            assert interrupted_everywhere(two) == message
        thread.join()


def interrupted_everywhere(channel: Channel) -> bytes:
    """Receive one message; stop at the next line of the channel's code each time, and once let it come to its end."""
    for line in range(1, 200):
        left = line

        def stop(frame: Any, event: str, arg: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename.endswith("channel.py") and frame.f_code.co_name in ("_read", "_progress"):
                left -= event == "line"
                if left == 0:
                    raise KeyboardInterrupt
            return stop

        before = sys.gettrace()
        sys.settrace(stop)
        try:
            return channel.receive_packed(LIMIT_S)
        except KeyboardInterrupt:
            continue
        finally:
            sys.settrace(before)
    raise AssertionError("it never came to an end")


def test_a_message_that_goes_out_bit_by_bit() -> None:
    """Nobody reads yet, and nobody is waited for."""
    with pair() as (ours, other):
        ours.send_later(pack(bytes(BIG)))
        reader = threading.Thread(target=lambda: received.append(other.receive(LIMIT_S)))
        received: list[Any] = []
        reader.start()
        while reader.is_alive():
            ours.push()
        reader.join()
        assert received == [bytes(BIG)]
        ours.push()  # nothing is left
        ours.send("next", LIMIT_S)
        assert other.receive(LIMIT_S) == "next"


def test_a_message_that_goes_out_bit_by_bit_to_nobody() -> None:
    with pair() as (ours, other):
        ours.send_later(pack(bytes(BIG)))
        other.close()
        with pytest.raises(ChannelClosed):
            ours.push()
