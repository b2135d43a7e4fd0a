"""Node processes on this host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clusterenv.clusters.base import Remote


@dataclass(frozen=True, slots=True, kw_only=True)
class Tcp(Remote):
    """Node processes on this host, reached by TCP on loopback: for trying things, and for tests."""

    kind: ClassVar[str] = "tcp"

    nodes: int = 2
