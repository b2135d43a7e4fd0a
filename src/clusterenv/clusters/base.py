"""What all clusters on other hosts have in common."""

from __future__ import annotations

import sys
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from clusterenv.amounts import parse_bytes
from clusterenv.clusters.addresses import split_address
from clusterenv.clusters.checks import (
    check_imports,
    check_python,
    check_seconds,
    check_text,
    check_whole,
    checked_texts,
)
from clusterenv.errors import ConfigTypeError

if TYPE_CHECKING:
    from typing import Any

    from _typeshed import DataclassInstance

# What the head and each node print when they run with `insecure`.
INSECURE = (
    "INSECURE: no encryption, and nobody proves who he is. Whoever can reach the head's port, or listen to this "
    "network, can read and change observations, actions and weights. Only for a network on which you trust everybody."
)

# Larger numbers are taken for typing errors.
MAX_NODES = 4096
MAX_WORKERS_PER_NODE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """What all clusters on other hosts have in common.

    Attributes:
        nodes: how many hosts take part.
        workers: worker processes per node; 0 means one per usable core of that host.
        python: the interpreter on the hosts; "" means the one that `interpreter` tells.
        imports: modules that the nodes import, so that the environments of these modules are registered there.
        bind: the address at which the head listens, "host" or "host:port"; "" leaves the choice to the head: loopback
            for `tcp`, the address that routes to the hosts otherwise.
        worker_memory: at how much memory of its own a worker is replaced by a fresh one; "" for no limit.
        wait_s: how long the head waits for the nodes, in seconds; None waits for ever.
        silence_s: after how many seconds of silence a node counts as lost, and a node gives up its head.
        insecure: no encryption, and nobody proves who he is: for a network on which you trust everybody. Never part of
            the text, so that no file and no variable can turn it on.
    """

    kind: ClassVar[str] = ""

    nodes: int = 1
    workers: int = 0
    python: str = ""
    imports: tuple[str, ...] = ()
    bind: str = ""
    worker_memory: str = ""
    wait_s: float | None = 60.0
    silence_s: float = 10.0
    insecure: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.type == "tuple[str, ...]":
                object.__setattr__(self, each.name, checked_texts(self, each.name))
            elif each.type == "str":
                check_text(self, each.name)
        self._check()
        check_whole(self, "nodes", 1, MAX_NODES)
        check_whole(self, "workers", 0, MAX_WORKERS_PER_NODE)
        check_python(self)
        check_imports(self)
        check_seconds(self)
        if self.worker_memory:
            parse_bytes(f"{self.kind}: worker_memory", self.worker_memory)
        if not isinstance(self.insecure, bool):
            raise ConfigTypeError(f"{self.kind}: insecure={self.insecure!r} must be True or False.")
        if self.bind:
            split_address(self.bind, what=f"{self.kind}: bind")

    def _check(self) -> None:
        """Check what only this kind has."""

    @property
    def interpreter(self) -> str:
        """The Python that is started on the hosts: `python`, or this one, or "python3" where hosts share no disk."""
        return self.python or sys.executable

    @property
    def text(self) -> str:
        """The short text that means the same."""
        options = options_of(self)
        return f"{self.kind}:{','.join(options)}" if options else self.kind


def fields_of_text(kind: type[DataclassInstance]) -> list[Field[Any]]:
    """The fields that a key of a text can set: those with a default, except `insecure`."""
    return [each for each in fields(kind) if each.init and each.default is not MISSING and each.name != "insecure"]


def options_of(cluster: DataclassInstance, *, without: str = "") -> list[str]:
    """The fields that differ from their defaults, each as the key=value of a text; not the one named `without`."""
    found = []
    for each in fields_of_text(type(cluster)):
        if each.name == without:
            continue
        value = getattr(cluster, each.name)
        if value == each.default and type(value) is type(each.default):
            continue
        for one in value if isinstance(value, tuple) else [value]:
            found.append(f"{each.name}={quote(_written(one), safe='/:.-_=@~+')}")
    return found


def _written(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
