"""Machines on which somebody starts the node by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clusterenv.clusters.addresses import split_address
from clusterenv.clusters.base import Remote
from clusterenv.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Remote):
    """Machines on which somebody starts the node by hand; the head tells the command and waits.

    Attributes:
        token_file: where the head puts the token that these machines need; "" for a fresh file in ~/.clusterenv. Only
            its owner can read it, and it is removed at the end.
        key_file: where the head keeps the keys of the run, for another head that shall go on after this one was killed.
            Needs a port in `bind`: the nodes that wait look for it there. "" for a run that ends with its head.
    """

    kind: ClassVar[str] = "join"

    token_file: str = ""
    key_file: str = ""

    def _check(self) -> None:
        if self.key_file and not (self.bind and split_address(self.bind, what="join: bind").port):
            raise ConfigError(f"join: key_file={self.key_file[:80]!r} needs a port, as in bind='0.0.0.0:5555'.")

    @property
    def interpreter(self) -> str:
        """The Python of the command that is shown; "python3" unless another was named."""
        return self.python or "python3"
