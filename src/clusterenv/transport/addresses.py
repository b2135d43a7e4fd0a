"""By which addresses other hosts may reach this one."""

from __future__ import annotations

import array
import errno
import fcntl
import pathlib
import socket
import struct

LOOPBACK = "127.0.0.1"
_IPV6 = pathlib.Path("/proc/net/if_inet6")
# Of linux/sockios.h and linux/if.h: the request, the size of an entry, and where in it the address is.
_SIOCGIFCONF, _ENTRY, _AT = 0x8912, struct.calcsize("16s2LH3B0L"), 20
# Reserved for documentation: nothing is sent there, the kernel only tells by which of our addresses it would go.
_ANYWHERE = ("192.0.2.1", 9)


def own_addresses() -> list[str]:
    """Addresses of this host, the one that leads outwards first. Loopback only if there is no other."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
            found.append(probe.getsockname()[0])
        except OSError:
            pass  # no way out of this host
    try:
        entries = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
        found += [str(entry[4][0]) for entry in entries]
    except OSError:
        pass  # its own name means nothing to it
    outward = [address for address in dict.fromkeys(found) if not address.startswith("127.")]
    return outward or [LOOPBACK]


def interface_addresses(family: socket.AddressFamily) -> list[str]:
    """All addresses of this family that the interfaces of this host have, whether anything is sent from them or not.

    Raises:
        OSError: the kernel does not tell.
    """
    return _ipv4_addresses() if family == socket.AF_INET else _ipv6_addresses()


def _ipv4_addresses() -> list[str]:
    room = 64 * _ENTRY
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        while True:
            entries = array.array("B", bytes(room))
            wanted = struct.pack("iP", room, entries.buffer_info()[0])
            (used,) = struct.unpack_from("i", fcntl.ioctl(asking, _SIOCGIFCONF, wanted))
            if used <= room - _ENTRY:  # else the kernel may have left out what did not fit
                return [socket.inet_ntoa(entries[at + _AT : at + _AT + 4]) for at in range(0, used, _ENTRY)]
            room *= 2


def _ipv6_addresses() -> list[str]:
    try:
        lines = _IPV6.read_text().splitlines()
    except OSError:
        if _has_ipv6():
            raise
        return []
    return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line[:32])) for line in lines]


def _has_ipv6() -> bool:
    try:
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()
    except OSError as error:
        return error.errno != errno.EAFNOSUPPORT
    return True
