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

_SPIN_MAX_S = 100e-6
_SPIN_MIN_S = 5e-6
# One look at the clock for this many looks at the word: the clock costs as much as two looks.
_LOOKS = 16


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
    """Waits for one word to change: spins a little where that pays, then sleeps.

    The spin doubles when it met the change and halves when it did not, between 5 and 100 microseconds, so a
    process that waits for something slow soon hardly spins at all.
    """

    def __init__(self, words: memoryview, index: int, address: int, *, may_spin: bool) -> None:
        self._words, self._index, self._address = words, index, address
        self._may_spin = may_spin
        self._spin_s = _SPIN_MAX_S

    def wait_while(self, value: int, limit_s: float) -> bool:
        """Wait while the word is `value`, at most `limit_s`. Return whether it has changed."""
        words, index = self._words, self._index
        if words[index] != value:
            return True
        if self._may_spin and self._spin(value):
            return True
        sleep_while(self._address, value, limit_s)
        changed: bool = words[index] != value
        return changed

    def _spin(self, value: int) -> bool:
        words, index = self._words, self._index
        end = time.perf_counter() + self._spin_s
        while time.perf_counter() < end:
            for _ in range(_LOOKS):
                if words[index] != value:
                    self._spin_s = min(self._spin_s * 2, _SPIN_MAX_S)
                    return True
        self._spin_s = max(self._spin_s / 2, _SPIN_MIN_S)
        return False
