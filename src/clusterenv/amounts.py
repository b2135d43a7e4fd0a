"""Amounts of memory as people write them."""

from __future__ import annotations

import re

from clusterenv.errors import ConfigError, ConfigTypeError

_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_AMOUNT = re.compile(rf"([0-9]{{1,6}}(?:\.[0-9]{{1,3}})?)({'|'.join(_UNITS)})")


def parse_bytes(name: str, text: object) -> int:
    """An amount with its unit, in bytes. A number without a unit would be bytes, which nobody means.

    Example:
        >>> parse_bytes("worker_memory", "1.5GiB")
        1610612736
        >>> parse_bytes("worker_memory", "2")
        Traceback (most recent call last):
        clusterenv.errors.ConfigError: worker_memory='2' must be an amount with its unit, as in '512MiB' or '2GiB'.
    """
    if not isinstance(text, str):
        raise ConfigTypeError(f"{name}={text!r} must be a text, as in '512MiB' or '2GiB'.")
    found = _AMOUNT.fullmatch(text)
    size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    if size < 1:
        raise ConfigError(f"{name}={text[:80]!r} must be an amount with its unit, as in '512MiB' or '2GiB'.")
    return size
