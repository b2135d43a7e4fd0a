"""Keys of one run: who may join, and how a node knows the head.

Every run makes two fresh pairs of CURVE keys. The head proves itself with the first; nodes prove themselves with the
second, which is the only one that the head lets in. A node gets what it needs as a small text, the *key file*, through
a private channel of the launcher. Nothing in it is of use after the run.

A run that shall outlive its head keeps all of its keys in a file of the head's own: the next head of the run has the
same keys, and a higher epoch (`open_run`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zmq

from clusterenv.errors import ConfigError, LaunchError
from clusterenv.private import write_private

if TYPE_CHECKING:
    import pathlib

_FORMAT = 1
_MAX_BYTES = 4096
_MAX_EPOCH = 2**31
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")  # Z85, 32 bytes


@dataclass(frozen=True, slots=True)
class NodeKeys:
    """What a node knows: whom to trust and how to prove itself."""

    run: str
    server: str
    public: str
    secret: str = field(repr=False)

    def text(self) -> str:
        """The key file, one line."""
        parts = {"run": self.run, "server": self.server, "public": self.public, "secret": self.secret}
        return json.dumps({"clusterenv": _FORMAT, **parts})


@dataclass(frozen=True, slots=True)
class RunKeys:
    """What the head knows."""

    node: NodeKeys
    secret: str = field(repr=False)


def make_keys() -> RunKeys:
    """Fresh keys for one run."""
    if not zmq.has("curve"):
        raise ConfigError("this build of ZeroMQ has no CURVE. Install the wheel of pyzmq: pip install --force pyzmq")
    server, server_secret = (key.decode() for key in zmq.curve_keypair())
    public, secret = (key.decode() for key in zmq.curve_keypair())
    return RunKeys(NodeKeys(secrets.token_hex(8), server, public, secret), server_secret)


def open_run(path: pathlib.Path) -> tuple[RunKeys, int]:
    """The keys of the run whose file this is, and the epoch of this head: 0 for the first, which makes the file.

    Raises:
        ConfigError: it is no such file, or others can read it.
        LaunchError: it cannot be made or written.
    """
    if os.path.lexists(path):
        keys, epoch = _parse_run(path, _read_private(path))
        epoch += 1
    else:
        keys, epoch = make_keys(), 0
    content = {**json.loads(keys.node.text()), "head_secret": keys.secret, "epoch": epoch}
    aside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)  # of a head that was killed right here
        write_private(aside, json.dumps(content))
        os.replace(aside, path)
    except OSError as error:
        raise LaunchError(f"the keys of the run cannot be kept in {str(path)!r}: {error.strerror}.") from error
    return keys, epoch


def _parse_run(path: pathlib.Path, text: str) -> tuple[RunKeys, int]:
    try:
        found: Any = json.loads(text) if len(text) <= _MAX_BYTES else None
        secret, epoch = found.pop("head_secret"), found.pop("epoch")
        if not _KEY.fullmatch(secret) or type(epoch) is not int or not 0 <= epoch < _MAX_EPOCH:
            raise ValueError
        return RunKeys(parse_keys(json.dumps(found)), secret), epoch
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise ConfigError(
            f"{str(path)!r} does not hold the keys of a run. Name one that a head has made, or that is not there."
        ) from None


def parse_keys(text: str) -> NodeKeys:
    """Read the text of a key file.

    Example:
        >>> keys = make_keys().node
        >>> parse_keys(keys.text()) == keys
        True
    """
    try:
        found: Any = json.loads(text) if len(text) <= _MAX_BYTES else None
        if found is None or found.pop("clusterenv") != _FORMAT:
            raise ValueError
        keys = NodeKeys(**found)
        if not all(_KEY.fullmatch(key) for key in (keys.server, keys.public, keys.secret)):
            raise ValueError
        if not re.fullmatch(r"[0-9a-f]{16}", keys.run):
            raise ValueError
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise ConfigError("this is no key file of clusterenv, or it was cut off. Take the one of this run.") from None
    return keys


def read_key_file(path: pathlib.Path) -> NodeKeys:
    """Read a key file that only its owner can read; anything else is refused.

    One that belongs to root may be read by its group as well: so a volume of Kubernetes is given to an ordinary user.
    """
    return parse_keys(_read_private(path))


def _read_private(path: pathlib.Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"the key file {str(path)!r} cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"the key file {str(path)!r} is not a regular file.")
        if status.st_mode & (0o037 if status.st_uid == 0 and os.getuid() != 0 else 0o077):
            mode = stat.S_IMODE(status.st_mode)
            raise ConfigError(f"others can read the key file {str(path)!r} (mode {mode:04o}): chmod 600 it.")
        return os.read(fd, _MAX_BYTES + 1).decode(errors="replace")
    finally:
        os.close(fd)
