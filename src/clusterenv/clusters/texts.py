"""From the short text of a cluster on other hosts to the typed object. The package says what a text looks like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from clusterenv.clusters.base import Remote, fields_of_text
from clusterenv.clusters.join import Join
from clusterenv.clusters.kubernetes import Kubernetes
from clusterenv.clusters.ray import Ray
from clusterenv.clusters.slurm import Slurm
from clusterenv.clusters.ssh import Ssh
from clusterenv.clusters.tcp import Tcp
from clusterenv.errors import ConfigError, ConfigTypeError, unknown

if TYPE_CHECKING:
    from dataclasses import Field
    from typing import Any

    from _typeshed import DataclassInstance

MAX_TEXT = 8192

KINDS: dict[str, type[Remote]] = {kind.kind: kind for kind in (Join, Kubernetes, Ray, Slurm, Ssh, Tcp)}


def parse_remote(text: str) -> Remote:
    """Turn the short text of a cluster on other hosts into the typed object.

    Example:
        >>> parse_remote("slurm:nodes=4,partition=cpu").nodes
        4
        >>> parse_remote("ssh://a,user@b:2222?workers=4").text
        'ssh://a,user@b:2222?workers=4'
    """
    if not isinstance(text, str):
        raise ConfigTypeError(f"cluster={text!r} must be a text such as 'ssh://node1,node2'.")
    kind, colon, rest = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(f"cluster={text[:80]!r}: " + unknown("kind", kind, KINDS))
    odd = re.search(r"[^!-~]", text)
    if odd or len(text) > MAX_TEXT:
        why = f"the character {odd.group()!r}" if odd else f"{len(text)} characters"
        raise ConfigError(
            f"cluster={text[:80]!r} must be at most {MAX_TEXT} ASCII characters without blanks, and it has {why}. "
            "Inside a value write it as %20 and the like, or use the typed form."
        )
    if kind == "ssh":
        return _parse_ssh(text, rest)
    if colon and not rest:
        raise ConfigError(f"cluster={text!r}: nothing follows the colon. Write {kind!r}, or as in '{kind}:nodes=2'.")
    return KINDS[kind](**values_of(KINDS[kind], text, rest.split(",") if rest else []))


def _parse_ssh(text: str, rest: str) -> Ssh:
    if not rest.startswith("//"):
        raise ConfigError(f"cluster={text[:80]!r} must name its hosts as in 'ssh://node1,user@node2:2222'.")
    hosts, question, query = rest[2:].partition("?")
    if question and not query:
        raise ConfigError(f"cluster={text[:80]!r}: nothing follows the question mark. Leave it out.")
    values = values_of(Ssh, text, query.split("&") if query else [])
    return Ssh(hosts=tuple(hosts.split(",")) if hosts else (), **values)


def values_of(kind: type[DataclassInstance], text: str, options: list[str], *, without: str = "") -> dict[str, Any]:
    """The fields that the options of a text set. The one named `without` is said in another way, and is no key.

    Raises:
        ConfigError: with the text, and what is wrong with which option.
    """
    known = {each.name: each for each in fields_of_text(kind) if each.name != without}
    where = f"cluster={text[:80]!r}: "
    values: dict[str, Any] = {}
    for option in options:
        key, equals, raw = option.partition("=")
        if not equals:
            raise ConfigError(f"{where}{option[:80]!r} must be key=value, as in 'workers=4'.")
        if key == "insecure" and issubclass(kind, Remote):
            raise ConfigError(f"{where}insecure= cannot be part of a text. Type --insecure, or use the typed form.")
        if key not in known:
            raise ConfigError(where + unknown("key", key, known))
        several = known[key].type == "tuple[str, ...]"
        if key in values and not several:
            raise ConfigError(f"{where}{key}= is given twice. Give it once.")
        value = _value(known[key], where, _decoded(where, raw))
        values[key] = (*values.get(key, ()), value) if several else value
    return values


def _value(each: Field[Any], where: str, text: str) -> Any:
    """A text as the type of its field."""
    if each.type in ("int", "int | None"):
        if text == "none" and each.type != "int":
            return None
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise ConfigError(f"{where}{each.name}={text[:80]!r} must be a whole number, as in '{each.name}=4'.")
        return int(text)
    if each.type in ("float", "float | None"):
        if text == "none" and each.type != "float":
            return None
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
            raise ConfigError(f"{where}{each.name}={text[:80]!r} must be seconds, as in '60', or 'none' for no limit.")
        return float(text)
    if not text:
        raise ConfigError(f"{where}{each.name}= has no value. Give one, or leave the key out.")
    return text


def _decoded(where: str, raw: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", raw):
        raise ConfigError(
            f"{where}{raw[:80]!r} has a percent sign that is not %XX. Write a percent sign itself as %25."
        )
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}{raw[:80]!r} must be UTF-8 behind its percent signs.") from None
