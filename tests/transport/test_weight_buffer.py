"""The double buffer of weights: every read is whole and never goes back, however fast versions come."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from clusterenv.sync.versions import Version
from clusterenv.sync.weights import Flat, WeightSpec
from clusterenv.transport.shared import SharedArrays
from clusterenv.transport.weights import WeightBuffer, weights_layout
from tests.transport.peers import other_process

if TYPE_CHECKING:
    from collections.abc import Iterator

FLOATS = 20_000
SPEC = WeightSpec.of({"w": np.zeros(FLOATS, np.float32), "steps": np.array(0)})


def flat(number: int) -> Flat:
    """Weights that tell their version in every place."""
    return Flat(np.full(FLOATS, number, np.float32), number.to_bytes(8, "little"))


def told(weights: Flat) -> set[int]:
    """The versions that weights tell."""
    return {*np.unique(weights.vector).astype(int).tolist(), int.from_bytes(weights.tail, "little")}


@contextmanager
def created(spec: WeightSpec = SPEC) -> Iterator[WeightBuffer]:
    memory = SharedArrays.create(weights_layout(spec))
    yield WeightBuffer(memory)
    memory.close()


def test_what_was_put_is_taken() -> None:
    with created() as buffer:
        assert buffer.count == 0
        for number in (3, 4, 9):
            buffer.put(Version(1, number), flat(number))
            count, found, weights = buffer.take(FLOATS)
            assert (count, found, told(weights)) == (buffer.count, number, {number})
        assert buffer.count == 3


def test_what_was_taken_is_a_copy() -> None:
    with created() as buffer:
        buffer.put(Version(0, 1), flat(1))
        _, _, weights = buffer.take(FLOATS)
        buffer.put(Version(0, 2), flat(2))
        buffer.put(Version(0, 3), flat(3))
        assert told(weights) == {1}


def test_tensors_of_other_dtypes_travel_too() -> None:
    with created() as buffer:
        weights = {"w": np.arange(FLOATS, dtype=np.float32), "steps": np.array(-7)}
        buffer.put(Version(0, 1), SPEC.flatten(weights))
        taken = SPEC.unflatten(buffer.take(FLOATS)[2])
        np.testing.assert_array_equal(taken["w"], weights["w"])
        assert taken["steps"] == -7


def test_a_policy_without_weights() -> None:
    spec = WeightSpec.of({})
    with created(spec) as nothing:
        nothing.put(Version(0, 5), spec.flatten({}))
        count, number, weights = nothing.take(spec.floats)
        assert (count, number, weights.vector.size, weights.tail) == (1, 5, 0, b"")


def test_a_writer_that_comes_round_while_it_is_read_is_noticed() -> None:
    with created() as buffer:
        # Whenever the reader has made its copy, two more versions are there: the half that it read may be torn.
        class Busy:
            def __init__(self) -> None:
                self.rounds = 0

            def __getitem__(self, half: int) -> Busy:
                self.half = half
                return self

            def copy(self) -> object:
                copied = data[self.half].copy()
                if self.rounds < 3:
                    self.rounds += 1
                    for number in (2 * self.rounds, 2 * self.rounds + 1):
                        buffer._data = data
                        buffer.put(Version(0, number), flat(number))
                        buffer._data = busy  # type: ignore[assignment]
                return copied

        data, busy = buffer._data, Busy()
        buffer.put(Version(0, 1), flat(1))
        buffer._data = busy  # type: ignore[assignment]
        count, number, weights = buffer.take(FLOATS)
        assert (count, number, told(weights)) == (7, 7, {7})
        assert busy.rounds == 3


def test_a_writer_that_was_interrupted_leaves_the_old_version() -> None:
    with created() as buffer:
        buffer.put(Version(0, 1), flat(1))
        with pytest.raises(ValueError, match="broadcast"):
            buffer.put(Version(0, 2), Flat(np.zeros(3, np.float32), b"1234567890"))
        assert told(buffer.take(FLOATS)[2]) == {1}
        buffer.put(Version(0, 3), flat(3))
        assert buffer.take(FLOATS)[:2] == (2, 3)
        assert told(buffer.take(FLOATS)[2]) == {3}


def test_a_thread_reads_whole_versions_while_others_are_put() -> None:
    with created() as buffer:
        buffer.put(Version(0, 1), flat(1))
        ended = threading.Event()
        seen: list[tuple[int, int, set[int]]] = []

        def read() -> None:
            while not ended.is_set():
                count, number, weights = buffer.take(FLOATS)
                seen.append((count, number, told(weights)))

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(2, 400):
            buffer.put(Version(0, number), flat(number))
        ended.set()
        reader.join()
        assert all(count == number and found == {number} for count, number, found in seen)
        assert [count for count, _, _ in seen] == sorted(count for count, _, _ in seen)


READER = f"""
import sys, numpy as np
from clusterenv.sync.weights import WeightSpec
from clusterenv.transport.shared import SharedArrays
from clusterenv.transport.weights import WeightBuffer, weights_layout
spec = WeightSpec.of({{"w": np.zeros({FLOATS}, np.float32), "steps": np.int64(0)}})
buffer = WeightBuffer(SharedArrays.attach(weights_layout(spec), int(sys.argv[1])))
last, reads = 0, 0
print("ready", flush=True)
while last < int(sys.argv[2]):
    count, number, weights = buffer.take(spec.floats)
    assert count == number >= last, (count, number, last)
    assert (weights.vector == number).all(), (number, np.unique(weights.vector))
    assert int.from_bytes(weights.tail, "little") == number
    last, reads = number, reads + 1
print(reads, flush=True)
"""


def test_a_process_reads_whole_versions_while_others_are_put() -> None:
    with created() as buffer:
        last = 3000
        buffer.put(Version(0, 1), flat(1))
        with other_process(READER, buffer.memory.fd, last, fds=(buffer.memory.fd,)) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            for number in range(2, last + 1):
                buffer.put(Version(0, number), flat(number))
            assert int(reader.stdout.readline()) > 0
