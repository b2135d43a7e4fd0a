"""The stand-in for the node, and the services that some tests need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterenv.testing.contracts import StandIn, make_stand_in
from tests.services import SshServer, path_of

if TYPE_CHECKING:
    import pathlib


@pytest.fixture(name="node")
def _node(tmp_path: pathlib.Path) -> StandIn:
    return make_stand_in(tmp_path)


@pytest.fixture(name="sshd")
def _sshd() -> SshServer:
    return SshServer(path_of("CLUSTERENV_TEST_SSH"))


@pytest.fixture(name="slurm")
def _slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(path_of("CLUSTERENV_TEST_SLURM_CONF")))
