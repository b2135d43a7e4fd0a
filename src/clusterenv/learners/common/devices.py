"""Whether torch can compute where the settings say, asked before anything is started."""

from __future__ import annotations

import torch

from clusterenv.errors import ConfigError


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
