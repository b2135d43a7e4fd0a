"""Addresses of hosts, as users write them."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from clusterenv.errors import ConfigError

_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


class Address(NamedTuple):
    """A host, the user there if one was named, and the port, 0 if none was named."""

    user: str
    host: str
    port: int


def split_address(text: str, *, what: str = "address", user: bool = False) -> Address:
    """Take "host", "host:port" or, where `user` allows it, "user@host:port" apart; brackets hold an IPv6 address.

    Example:
        >>> split_address("[::1]:22")
        Address(user='', host='::1', port=22)
    """
    name, at, rest = text.rpartition("@") if user else ("", "", text)
    if at and not _USER.fullmatch(name):
        raise ConfigError(
            f"{what} {text[:80]!r}: {name[:80]!r} must be a user: letters, digits and . _ -, as in 'me@a'."
        )
    found = re.fullmatch(r"(\[(?P<six>[^\]]*)\]|(?P<host>[^:\[\]]*))(:(?P<port>[^:]*))?", rest)
    if not found:
        raise ConfigError(
            f"{what} {text[:80]!r} must be 'host' or 'host:port'. Put an IPv6 address in brackets, as in '[::1]:22'."
        )
    port = found["port"]
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise ConfigError(f"{what} {text[:80]!r}: the port {port[:80]!r} must be a number between 1 and 65535.")
    host = found["host"] if found["six"] is None else found["six"]
    if not (_HOST.fullmatch(host) if found["six"] is None else _is_ipv6(host)):
        raise ConfigError(
            f"{what} {text[:80]!r} must be the name or the address of a host: 1 to 253 letters, digits and . _ -, "
            "with a letter or a digit at both ends; or an IPv6 address in brackets."
        )
    return Address(name, host, int(port or 0))


def _is_ipv6(host: str) -> bool:
    address, _, zone = host.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return "%" not in host or bool(_USER.fullmatch(zone))
