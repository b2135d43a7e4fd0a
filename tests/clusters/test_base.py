"""What all clusters on other hosts have in common: defaults, and values of a wrong type or size."""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Any

import pytest

from clusterenv.clusters import Join, Kubernetes, Slurm, Ssh, Tcp
from clusterenv.errors import ConfigError, ConfigTypeError


def test_defaults() -> None:
    assert (Tcp().wait_s, Ssh(hosts=("a",)).wait_s, Slurm().wait_s, Join().wait_s) == (60.0, 60.0, 600.0, 60.0)
    assert (Tcp().nodes, Slurm().nodes, Join().nodes, Ssh(hosts=("a", "b", "c")).nodes) == (2, 1, 1, 3)
    assert Tcp().interpreter == Slurm().interpreter == sys.executable
    assert Ssh(hosts=("a",)).interpreter == Join().interpreter == Kubernetes().interpreter == "python3"
    assert (Kubernetes().nodes, Kubernetes().wait_s, Kubernetes().shm) == (1, 600.0, "1Gi")
    assert all(kind.interpreter == "/p" for kind in (Tcp(python="/p"), Ssh(hosts=("a",), python="/p")))


def test_clusters_are_named_frozen_and_take_lists() -> None:
    with pytest.raises(TypeError):
        Tcp(2)  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Tcp().nodes = 3  # type: ignore[misc]
    assert Ssh(hosts=["a", "b"]).hosts == ("a", "b")  # type: ignore[arg-type]
    assert hash(Slurm(extra=["--mem=1G"])) == hash(Slurm(extra=("--mem=1G",)))  # type: ignore[arg-type]


BAD_TYPES: dict[str, dict[str, Any]] = {
    "nodes as text": {"nodes": "2"},
    "nodes as a boolean": {"nodes": True},
    "nodes as a fraction": {"nodes": 2.0},
    "workers as nothing": {"workers": None},
    "python as a path": {"python": 3},
    "imports as one text": {"imports": "my_envs"},
    "imports of numbers": {"imports": (1,)},
    "imports as nothing": {"imports": None},
    "bind as a number": {"bind": 5555},
    "seconds as text": {"wait_s": "60"},
    "seconds as a boolean": {"wait_s": True},
    "cpus as text": {"cpus": "4"},
    "extra as one text": {"extra": "--mem=8G"},
    "time as a number": {"time": 60},
}


@pytest.mark.parametrize("values", BAD_TYPES.values(), ids=BAD_TYPES.keys())
def test_a_value_of_another_type_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigTypeError, match=f"slurm: {next(iter(values))}="):
        Slurm(**values)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 10**400, 1e-9])
def test_a_bad_limit_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="tcp: wait_s="):
        Tcp(wait_s=value)


@pytest.mark.parametrize("hosts", ["a", None, (), [1]])
def test_hosts_of_another_type_are_refused(hosts: Any) -> None:
    with pytest.raises(ConfigError, match=r"hosts=|no host"):
        Ssh(hosts=hosts)
