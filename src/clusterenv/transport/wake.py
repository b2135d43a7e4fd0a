"""Waking another process: wait until a word of shared memory changes.

A futex is a word to sleep on. The kernel compares the word with what the sleeper saw last, under its own lock, before
it lets it sleep, so a change between the look and the sleep is never missed; and it needs no descriptor. Before it
sleeps, a waiter may spin for a while, if spinning has paid lately and there is a core to spare.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import time

from clusterenv.errors import LaunchError

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98}.get(platform.machine())
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
            f"cluster='local' needs Linux on x86-64, ARM64 or RISC-V; this is {platform.system()} on "
            f"{platform.machine()}. Use cluster='inproc' here."
        )


def wake(address: int) -> None:
    """Wake everybody who sleeps on the word at `address`. Change the word before."""
    _syscall(_SYS_FUTEX, address, _FUTEX_WAKE, _EVERYBODY, None, None, 0)


def sleep_while(address: int, value: int, limit_s: float) -> None:
    """Sleep while the word at `address` is `value`, at most `limit_s`. May return early for no reason."""
    seconds = int(limit_s)
    limit = _Timespec(seconds, int((limit_s - seconds) * 1e9))
    result = _syscall(_SYS_FUTEX, address, _FUTEX_WAIT, value, ctypes.byref(limit), None, 0)
    if result == -1:
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(code, os.strerror(code))


class Waiter:
    """Waits for one word to change: spins if the last wait was short, otherwise sleeps.

    So a worker in a fast loop answers at once, and one whose learner takes its time burns a millisecond, once.

    Args:
        words: shared memory.
        index: of the word in it.
        address: of the word.
        spare_core: whether there is a core that nobody else of ours needs. If not, the spinner offers its core to
            others between two looks.
    """

    def __init__(self, words: memoryview, index: int, address: int, *, spare_core: bool) -> None:
        self._words, self._index, self._address = words, index, address
        self._spare_core = spare_core
        self._last_s = 0.0

    def wait_while(self, value: int, limit_s: float) -> bool:
        """Wait while the word is `value`, at most `limit_s`. Return whether it has changed."""
        words, index = self._words, self._index
        if words[index] != value:
            return True
        began = time.perf_counter()
        if self._last_s >= _SPIN_S or not self._spin(value, began + min(_SPIN_S, limit_s)):
            sleep_while(self._address, value, limit_s)
        self._last_s = time.perf_counter() - began
        changed: bool = words[index] != value
        return changed

    def _spin(self, value: int, end: float) -> bool:
        words, index, spare_core = self._words, self._index, self._spare_core
        while time.perf_counter() < end:
            for _ in range(_LOOKS):
                if words[index] != value:
                    return True
            if not spare_core:
                os.sched_yield()
        return False
