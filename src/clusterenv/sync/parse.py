"""The short texts of `sync=`."""

from __future__ import annotations

import math
import re

from clusterenv.errors import ConfigError, ConfigTypeError, unknown
from clusterenv.sync.aps import APS
from clusterenv.sync.rules import Always, Every, Never, OnChange, Rule

_PLAIN: dict[str, type[Rule]] = {"always": Always, "never": Never, "on-change": OnChange}
_NAMES = ("always", "aps", "every", "never", "on-change")


def parse_sync(sync: str | Rule) -> Rule:
    """Turn a short text into a rule: "aps", "aps:0.05", "every:4", "always", "on-change" or "never".

    Example:
        >>> parse_sync("every:4")
        Every(versions=4)
    """
    if isinstance(sync, str):
        name, colon, value = sync.partition(":")
        if name not in _NAMES:
            raise ConfigError(unknown("sync", name, _NAMES) + " For example sync='aps:0.05'.")
        return _rule(sync, name, value if colon else None)
    if isinstance(sync, type) or not isinstance(sync, Rule):
        raise ConfigTypeError(
            f"sync={sync!r} must be a text such as 'aps:0.05', or a rule such as clusterenv.APS(threshold=0.05)."
        )
    return sync


def _rule(sync: str, name: str, value: str | None) -> Rule:
    if name == "every":
        if value is None or not re.fullmatch(r"[0-9]{1,12}", value):
            raise ConfigError(f"sync={sync[:80]!r}: say every how many versions, as in 'every:4'.")
        return Every(int(value))
    if name == "aps":
        return APS() if value is None else APS(_threshold(sync, value))
    if value is not None:
        raise ConfigError(f"sync={sync[:80]!r}: {name!r} takes no number. Write sync={name!r}.")
    return _PLAIN[name]()


def _threshold(sync: str, value: str) -> float:
    try:
        threshold = float(value)
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        raise ConfigError(f"sync={sync[:80]!r}: the threshold must be a number, as in 'aps:0.05'.")
    return threshold
