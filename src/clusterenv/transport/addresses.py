"""By which addresses other hosts may reach this one."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"
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
