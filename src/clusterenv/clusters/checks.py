"""Checks of the fields of a cluster. Each raises ConfigError with the value, what it must be, and an example."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterenv.errors import ConfigError, ConfigTypeError

if TYPE_CHECKING:
    from clusterenv.clusters.base import Remote

# A name starts with a letter or a digit, so that no program can take it for an option.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


def refused(cluster: Remote, name: str, value: object, must_be: str) -> ConfigError:
    """The error for a field with this value; to be raised by whoever asks."""
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:80] + "..."
    return ConfigError(f"{cluster.kind}: {name}={shown} must be {must_be}.")


def check_whole(cluster: Remote, name: str, least: int, most: int) -> None:
    """A field is a whole number between these two."""
    value = getattr(cluster, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigTypeError(f"{cluster.kind}: {name}={value!r} must be a whole number between {least} and {most}.")
    if not least <= value <= most:
        raise ConfigError(f"{cluster.kind}: {name}={str(value)[:20]} must be between {least} and {most}.")


def check_text(cluster: Remote, name: str) -> None:
    """A field is a text that can stand on a command line."""
    value = getattr(cluster, name)
    if not isinstance(value, str):
        raise ConfigTypeError(f"{cluster.kind}: {name}={value!r} must be a text.")
    if not value.isprintable() or value.startswith("-") or len(value) > 1024:
        raise refused(cluster, name, value, "at most 1024 printable characters, and may not start with '-'")


def checked_texts(cluster: Remote, name: str) -> tuple[str, ...]:
    """A field of several texts, as a tuple."""
    value = getattr(cluster, name)
    if not isinstance(value, (tuple, list)) or not all(isinstance(each, str) for each in value):
        raise ConfigTypeError(f"{cluster.kind}: {name}={value!r} must be a tuple of texts, as in {name}=('a', 'b').")
    return tuple(value)


def check_python(cluster: Remote) -> None:
    """The interpreter is named so that a host finds it without a shell."""
    if cluster.python.startswith("~"):
        raise refused(cluster, "python", cluster.python, "a full path or a name: nothing on the hosts expands '~'")


def check_imports(cluster: Remote) -> None:
    """The modules to import have names of modules."""
    for name in cluster.imports:
        if not _MODULE.fullmatch(name) or len(name) > 255:
            raise refused(cluster, "imports", name, "the name of a module, as in 'my_package.my_envs'")


def check_seconds(cluster: Remote) -> None:
    """The limits are seconds; they are kept as floats with nine decimals, which is what their text can hold."""
    for name, least, never in (("wait_s", 0.001, ", or None to wait for ever"), ("silence_s", 0.1, "")):
        value = getattr(cluster, name)
        if value is None and never:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigTypeError(f"{cluster.kind}: {name}={value!r} must be seconds{never}.")
        if not least <= value < 1e9:  # NaN is refused as well
            raise refused(cluster, name, value, f"between {least} and 1e9 seconds{never}")
        object.__setattr__(cluster, name, round(float(value), 9))
