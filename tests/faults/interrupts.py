"""Ctrl-C at a chosen moment."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interrupted_when(*moments: Callable[[], Any], then: Callable[[], Any] | None = None) -> Iterator[None]:
    """Ctrl-C comes, in the middle of the body, each time that one of `moments` has returned; then `then` is called."""

    def interrupt() -> None:
        for moment in moments:
            moment()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if then is not None:
            then()

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the thread may be quicker than we are
        thread.start()
        yield
    thread.join()
