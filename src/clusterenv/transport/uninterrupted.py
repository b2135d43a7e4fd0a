"""Acts of a moment that Ctrl-C must not cut in two.

Most of what an interrupt could spoil is made safe by its order: kept until it is done, noted before it is sent. This is
for the few places where two things have to happen together, and neither of them waits for anybody.
"""

from __future__ import annotations

import importlib
import signal
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

T = TypeVar("T")

# Below the module `signal`, which turns numbers into enums and back: that takes ten times as long as the rest.
_signals: Any = importlib.import_module("_signal")
_SIGINT = int(signal.SIGINT)


def uninterrupted(act: Callable[..., T], *args: Any) -> T:
    """Do something that is over in a moment. Ctrl-C that comes meanwhile is heard when it is done.

    Example:
        >>> uninterrupted(max, 1, 2)
        2
    """
    if threading.current_thread() is not threading.main_thread():
        return act(*args)  # Python interrupts the main thread only
    usual = _signals.getsignal(_SIGINT)
    if not callable(usual):
        return act(*args)  # nobody is interrupted; or the handler is none of Python's, and could not be put back
    came: list[FrameType | None] = []
    _signals.signal(_SIGINT, lambda number, frame: came.append(frame))
    try:
        return act(*args)
    finally:
        _signals.signal(_SIGINT, usual)
        if came:
            usual(_SIGINT, came[0])
