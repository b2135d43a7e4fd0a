"""Waking another process: a change is never missed, and every wait ends."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from clusterenv.errors import LaunchError
from clusterenv.transport import wake as wake_module
from clusterenv.transport.arena import Arena, ArenaSpec, Word
from clusterenv.transport.wake import Signal, check_supported, fence, sleep_while, wake
from tests.faults.interrupts import interrupted_everywhere
from tests.transport.peers import other_process
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC = ArenaSpec(1, 1, (), ())
LONG_S = 60.0  # a wake-up that is missed costs this long, and then the test fails
MISSED_S = 50.0
# Fewer where others use the cores: two that take turns on one need minutes for all.
ROUNDS, ENOUGH_S = 30_000, 20.0


@contextmanager
def created() -> Iterator[Arena]:
    arena = Arena.create(SPEC)
    try:
        yield arena
    finally:
        arena.close()


def go(arena: Arena, *, spare_core: bool = False) -> Signal:
    """What a worker waits for and the head changes."""
    return arena.signal(0, Word.GO, Word.SLEEPS, spare_core=spare_core)


def change(arena: Arena, word: Word, value: int, signal: Signal) -> None:
    arena.words[arena.word(0, word)] = value
    fence()
    signal.wake()


PEER = """
import itertools, sys, time
from clusterenv.transport.arena import Arena, ArenaSpec, Word
from clusterenv.transport.wake import fence
arena = Arena.attach(ArenaSpec(1, 1, (), ()), int(sys.argv[1]))
spin, spare_core = bool(int(sys.argv[2])), bool(int(sys.argv[3]))
go = arena.signal(0, Word.GO, Word.SLEEPS, spare_core=spare_core)
bell = arena.bell_signal(spare_core=spare_core)
for number in itertools.count():
    end = time.monotonic() + 50.0
    while not go.wait_while(number, 60.0, spin=spin):
        assert time.monotonic() < end, "a wake-up was missed"
    if arena.words[arena.word(0, Word.GO)] == -1:
        break
    assert arena.words[arena.word(0, Word.GO)] == number + 1
    arena.bell[0] = number + 1
    fence()
    bell.wake()
"""


@pytest.mark.parametrize(
    ("spin", "spare_core"),
    [(False, False), (True, False), (True, True)],
    ids=["sleeping", "spinning on a shared core", "spinning on a spare core"],
)
def test_no_wake_up_is_lost_between_two_processes(spin: bool, spare_core: bool) -> None:
    with created() as arena, other_process(PEER, arena.fd, int(spin), int(spare_core), fds=(arena.fd,)):
        asked, answer = go(arena, spare_core=spare_core), arena.bell_signal(spare_core=spare_core)
        enough = time.monotonic() + ENOUGH_S
        for number in range(ROUNDS):
            if time.monotonic() > enough:
                break
            end = time.monotonic() + MISSED_S
            change(arena, Word.GO, number + 1, asked)
            # A wake-up for the round before may come late and end this wait early: then it is waited for again.
            while not answer.wait_while(number, LONG_S, spin=spin):
                assert time.monotonic() < end, "a wake-up was missed"
            assert arena.bell[0] == number + 1
        change(arena, Word.GO, -1, asked)


SLEEPER = """
import sys
from clusterenv.transport.arena import Arena, ArenaSpec, Word
arena = Arena.attach(ArenaSpec(1, 1, (), ()), int(sys.argv[1]))
signal = arena.signal(0, Word.GO, Word.SLEEPS, spare_core=False)
sys.exit(0 if signal.wait_while(0, 60.0, spin=False) else 1)
"""


def test_a_sleeper_says_so_and_is_woken() -> None:
    with created() as arena, other_process(SLEEPER, arena.fd, fds=(arena.fd,)):
        sleeps = arena.word(0, Word.SLEEPS)
        wait_until(lambda: bool(arena.words[sleeps]), limit_s=30.0)
        change(arena, Word.GO, 1, go(arena))
    assert arena.words[sleeps] == 0, "it says too that it is awake again"


def test_several_sleepers_are_all_woken() -> None:
    with created() as arena:
        address = arena.words_address + 4 * arena.word(0, Word.GO)
        threads = [threading.Thread(target=sleep_while, args=(address, 0, LONG_S)) for _ in range(3)]
        for thread in threads:
            thread.start()
        arena.words[arena.word(0, Word.GO)] = 1
        wake(address)
        for thread in threads:
            thread.join(MISSED_S)
        assert not any(thread.is_alive() for thread in threads)


def test_an_interrupt_anywhere_in_a_fence_does_not_stop_the_next_one() -> None:
    moments = 0
    for where in interrupted_everywhere(fence, "transport/wake.py", opcodes=True):
        moments += 1
        other = threading.Thread(target=fence, daemon=True)
        other.start()
        other.join(LONG_S)
        assert not other.is_alive(), f"interrupted at {where}, it has left something locked"
    assert moments > 0


def test_nobody_is_woken_who_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    monkeypatch.setattr(wake_module, "wake", woken.append)
    with created() as arena:
        go(arena).wake()
        assert not woken
        arena.words[arena.word(0, Word.SLEEPS)] = 1
        go(arena).wake()
        assert woken == [arena.words_address + 4 * arena.word(0, Word.GO)]


def test_a_change_before_the_wait_needs_no_wake_up() -> None:
    with created() as arena:
        arena.words[arena.word(0, Word.GO)] = 5
        assert go(arena).wait_while(4, LONG_S, spin=False)
        # The kernel looks again and does not sleep.
        sleep_while(arena.words_address + 4 * arena.word(0, Word.GO), 4, LONG_S)


@pytest.mark.parametrize("spare_core", [False, True])
@pytest.mark.parametrize("spin", [False, True])
@pytest.mark.parametrize("limit_s", [0.0, 0.00001, 0.02])
def test_a_wait_for_nothing_ends_at_its_limit(spare_core: bool, spin: bool, limit_s: float) -> None:
    with created() as arena:
        assert not go(arena, spare_core=spare_core).wait_while(0, limit_s, spin=spin)


def test_a_wake_up_without_a_change_is_not_a_change() -> None:
    with created() as arena:
        ended = threading.Event()

        def ring() -> None:
            while not ended.is_set():
                go(arena).wake()

        thread = threading.Thread(target=ring)
        thread.start()
        try:
            assert not go(arena).wait_while(0, LONG_S, spin=False)
        finally:
            ended.set()
            thread.join()


def test_negative_words_compare_as_they_are() -> None:
    with created() as arena:
        arena.words[arena.word(0, Word.GO)] = -1
        assert not go(arena).wait_while(-1, 0.001, spin=False)
        assert go(arena).wait_while(0, LONG_S, spin=False)


def test_a_wrong_address_is_an_error() -> None:
    with pytest.raises(OSError, match=r"Bad address|Invalid argument"):
        sleep_while(1, 0, 0.001)


class Script:
    """A word whose value is scripted, and a clock that only moves when the waiter sleeps or looks."""

    itemsize = 4

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks, self.sleeps, self.now = 0, 0, 0.0
        self.changes_at: int | None = None  # at which look the word changes
        self.sleep_takes_s = 0.0
        monkeypatch.setattr("clusterenv.transport.wake.time.perf_counter", self._clock)
        monkeypatch.setattr(wake_module, "sleep_while", self._sleep)

    def __getitem__(self, index: int) -> int:
        self.looks += 1
        self.now += 1e-6
        return 1 if self.changes_at is not None and self.looks >= self.changes_at else 0

    def __setitem__(self, index: int, value: int) -> None:
        """The waiter says whether it sleeps."""

    def _clock(self) -> float:
        return self.now

    def _sleep(self, address: int, value: int, limit_s: float) -> None:
        self.sleeps += 1
        self.now += self.sleep_takes_s

    def wait(self, signal: Signal, *, changes_at: int | None = None, sleep_takes_s: float = 0.0) -> tuple[bool, int]:
        """Wait once; return what the waiter said and how often it slept."""
        self.looks = self.sleeps = 0
        self.changes_at, self.sleep_takes_s = changes_at, sleep_takes_s
        return signal.wait_while(0, LONG_S), self.sleeps


def scripted(script: Script, *, spare_core: bool) -> Signal:
    return Signal(cast("memoryview", script), 0, 1, 0, spare_core=spare_core)


@pytest.mark.parametrize("spare_core", [False, True])
def test_a_change_that_comes_soon_is_met_without_sleep(monkeypatch: pytest.MonkeyPatch, spare_core: bool) -> None:
    script = Script(monkeypatch)
    signal = scripted(script, spare_core=spare_core)
    assert script.wait(signal, changes_at=40) == (True, 0)
    assert script.wait(signal, changes_at=40) == (True, 0)


@pytest.mark.parametrize("spare_core", [False, True])
def test_after_a_long_wait_it_sleeps_at_once_and_after_a_short_one_it_spins(
    monkeypatch: pytest.MonkeyPatch, spare_core: bool
) -> None:
    script = Script(monkeypatch)
    signal = scripted(script, spare_core=spare_core)
    assert script.wait(signal, sleep_takes_s=1.0) == (False, 1)
    assert script.looks > 100, "the first wait spins before it sleeps"
    assert script.wait(signal, sleep_takes_s=1e-5) == (False, 1)
    assert script.looks < 10, "the last wait was long: it sleeps at once"
    assert script.wait(signal, changes_at=40) == (True, 0), "the last wait was short: it spins again"


def test_without_leave_it_never_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch)
    assert not scripted(script, spare_core=True).wait_while(0, LONG_S, spin=False)
    assert script.looks < 10
    assert script.sleeps == 1


def test_this_host_is_supported() -> None:
    check_supported()


def test_another_host_is_told_what_to_use_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_module, "_SYS_FUTEX", None)
    monkeypatch.setattr("clusterenv.transport.wake.platform.machine", lambda: "sparc64")
    with pytest.raises(LaunchError, match=r"sparc64.*Use cluster='inproc'"):
        check_supported()
