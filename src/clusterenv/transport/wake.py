"""Waking another process: wait until a word of shared memory changes.

A futex is a word to sleep on. The kernel compares the word with what the sleeper saw last, under its own lock, before
it lets it sleep, so a change between the look and the sleep is never missed; and it needs no descriptor.

Two things make it fast. A waiter spins first, if the last wait was short. And it says in a second word when it really
sleeps, so that the other side calls the kernel only if there is somebody to wake: sixteen calls that wake nobody
would cost a head with sixteen workers more than the rest of its step.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import threading
import time

from clusterenv.errors import LaunchError

# Only where a processor shows its writes to others in their order: rows are written first, then the word that tells of
# them, with nothing in between.
_SYS_FUTEX = 202 if platform.machine() == "x86_64" else None
_FUTEX_WAIT = 0
_FUTEX_WAKE = 1
_EVERYBODY = 2**31 - 1

# A wait that is likely to be shorter than this is spun through. On a virtual machine it costs an idle core 50 to 100
# microseconds to wake up, which is a tenth of a step of many environments.
_SPIN_S = 1e-3
# One look at the clock for this many looks at the word: the clock costs as much as two looks.
_LOOKS = 8


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(_Timespec),
    ctypes.c_void_p,
    ctypes.c_int,
)


def check_supported() -> None:
    """Raise if this host has no futex that we know of."""
    if _SYS_FUTEX is None or not hasattr(os, "memfd_create"):
        raise LaunchError(
            f"cluster='local' needs Linux on x86-64; this is {platform.system()} on "
            f"{platform.machine()}. Use cluster='inproc' here."
        )


def wake(address: int) -> None:
    """Wake everybody who sleeps on the word at `address`. Change the word before."""
    _syscall(_SYS_FUTEX, address, _FUTEX_WAKE, _EVERYBODY, None, None, 0)


def fence() -> None:
    """Make our stores visible before our next loads.

    Without it the processor may read the sleeper's word before its own store is out, while the sleeper does the same
    the other way round: both would miss each other. Taking a free lock is the cheapest full barrier in Python. A lock
    of our own each time: Ctrl-C between taking and giving back one that is shared would stop everybody for ever.
    """
    threading.Lock().acquire()


def sleep_while(address: int, value: int, limit_s: float) -> None:
    """Sleep while the word at `address` is `value`, at most `limit_s`. May return early for no reason."""
    seconds = int(limit_s)
    limit = _Timespec(seconds, int((limit_s - seconds) * 1e9))
    result = _syscall(_SYS_FUTEX, address, _FUTEX_WAIT, value, ctypes.byref(limit), None, 0)
    if result == -1:
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(code, os.strerror(code))


class Signal:
    """One word of shared memory that one side changes and the other waits for.

    Args:
        words: shared memory.
        word: index of the word.
        sleeper: index of the word in which the waiting side says that it sleeps.
        address: of the memory that `words` shows.
        spare_core: whether there is a core that nobody else of ours needs. If not, a spinning waiter offers its core
            to others between two looks.
    """

    def __init__(self, words: memoryview, word: int, sleeper: int, address: int, *, spare_core: bool) -> None:
        self._words, self._word, self._sleeper = words, word, sleeper
        self._address = address + words.itemsize * word
        self._spare_core = spare_core
        self._last_s = 0.0

    def wake(self) -> None:
        """Wake the waiting side if it sleeps. Change the word, then call `fence`, then this."""
        if self._words[self._sleeper]:
            wake(self._address)

    def wait_while(self, value: int, limit_s: float, *, spin: bool = True) -> bool:
        """Wait while the word is `value`, at most `limit_s`. Return whether it has changed."""
        words, word = self._words, self._word
        if words[word] != value:
            return True
        began = time.perf_counter()
        if not spin or self._last_s >= _SPIN_S or not self._spin(value, began + min(_SPIN_S, limit_s)):
            words[self._sleeper] = 1
            # The kernel looks at the word again behind a barrier of its own, so none is needed here.
            sleep_while(self._address, value, limit_s)
            words[self._sleeper] = 0
        self._last_s = time.perf_counter() - began
        changed: bool = words[word] != value
        return changed

    def _spin(self, value: int, end: float) -> bool:
        words, word, spare_core = self._words, self._word, self._spare_core
        while time.perf_counter() < end:
            for _ in range(_LOOKS):
                if words[word] != value:
                    return True
            if not spare_core:
                os.sched_yield()
        return False
