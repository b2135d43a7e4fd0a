"""Whether torch can compute where the settings say, and has room there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from clusterenv.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_device(name: str) -> None:
    """Refuse a device that is not there.

    Raises:
        ConfigError: torch does not know it, or this machine does not have it.

    Example:
        >>> check_device("cpu")
        >>> check_device("banana")
        Traceback (most recent call last):
        clusterenv.errors.ConfigError: device='banana' cannot be used: ... Here are: cpu...
    """
    try:
        if torch.empty(0, device=name).is_meta:
            raise RuntimeError("it knows shapes, but no numbers")
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch was built without CUDA
        found = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"device={name!r} cannot be used: {reason}. Here are: {', '.join(found)}.") from None


@contextlib.contextmanager
def room_for_network(device: str) -> Iterator[None]:
    """Around the making of a network: one that is too large is refused in words, not with torch's traceback.

    Raises:
        ConfigError: it does not fit into memory.
    """
    try:
        yield
    except RuntimeError as error:  # torch has a type of its own for accelerators, and only words for a CPU
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        reason = str(error).splitlines()[0].rpartition("DefaultCPUAllocator: ")[2].rstrip(".")
        raise ConfigError(
            f"the network does not fit into the memory of device={device!r}: {reason}. Ask for smaller layers (hidden, "
            "lstm)."
        ) from error
