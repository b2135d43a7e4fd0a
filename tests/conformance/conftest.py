"""The same tests over every kind of cluster. Batches are shared by all tests of a cluster: `reset` makes them fresh."""

from __future__ import annotations

import gc
import os
import pathlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.wrappers import FlattenObservation, TimeLimit

import clusterenv
from clusterenv import ClusterEnv, make_vec
from clusterenv.clusters import Slurm, Ssh
from tests.conformance.kit import CLUSTERS, DRESS, NUM_ENVS, SAMPLE, TRIAL, slots
from tests.services import SshServer, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterenv.config import Cluster


@pytest.fixture(scope="session", autouse=True)
def cheap_collections() -> None:
    """The check for leaks collects garbage twice per test: spare it the million objects of the libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str | Cluster:
    """Where the environments live."""
    kind = str(request.param)
    if kind not in ("ssh", "slurm"):
        return kind
    folder = tmp_path_factory.mktemp(kind)
    if kind == "ssh":
        sshd = SshServer(path_of("CLUSTERENV_TEST_SSH"))
        known, identity = sshd.file("known_hosts"), sshd.file("id")
        return Ssh(hosts=sshd.hosts, known_hosts=known, identity=identity, python=_interpreter(folder), workers=1)
    os.environ["SLURM_CONF"] = str(path_of("CLUSTERENV_TEST_SLURM_CONF"))
    return Slurm(nodes=2, workers=1, python=_interpreter(folder), folder=str(folder / "keys"))


def _interpreter(folder: pathlib.Path) -> str:
    """A Python that finds this repository as an installed one would: who logs in is at home, without our paths."""
    program = folder / "python"
    root = pathlib.Path(__file__).parents[2]
    paths = os.pathsep.join([str(pathlib.Path(clusterenv.__file__).parents[1]), str(root)])
    program.write_text(f'#!/bin/sh\ncd "{root}"\nPYTHONPATH="{paths}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def make(cluster: Any) -> Iterator[Callable[..., ClusterEnv]]:
    """Make a batch on the cluster of this test; it is closed afterwards."""
    opened: list[ClusterEnv] = []

    def make(env_id: str = TRIAL, num_envs: int = NUM_ENVS, **kwargs: Any) -> ClusterEnv:
        opened.append(make_vec(env_id, num_envs, **{"cluster": cluster, **kwargs}))
        return opened[-1]

    yield make
    while opened:  # the memory of a batch lives as long as somebody holds the batch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a test that ends with a call under way
            opened.pop().close()


def _shared(cluster: Any, env_id: str, **kwargs: Any) -> Iterator[ClusterEnv]:
    envs = make_vec(env_id, NUM_ENVS, cluster=cluster, **kwargs)
    yield envs
    envs.close()


def _trial(cluster: Any, **kwargs: Any) -> Iterator[ClusterEnv]:
    yield from _shared(cluster, TRIAL, slot_kwargs=slots(), **kwargs)


@pytest.fixture(scope="session")
def next_step(cluster: Any) -> Iterator[ClusterEnv]:
    """Trial environments that go on after a loss."""
    yield from _trial(cluster)


@pytest.fixture(scope="session")
def same_step(cluster: Any) -> Iterator[ClusterEnv]:
    """The same, reset in the step in which they end."""
    yield from _trial(cluster, vector_kwargs={"autoreset_mode": "SameStep"})


@pytest.fixture(scope="session")
def disabled(cluster: Any) -> Iterator[ClusterEnv]:
    """The same, reset by the user."""
    yield from _trial(cluster, vector_kwargs={"autoreset_mode": "Disabled"})


@pytest.fixture(scope="session")
def strict(cluster: Any) -> Iterator[ClusterEnv]:
    """Trial environments whose losses are raised."""
    yield from _trial(cluster, on_loss="raise")


@pytest.fixture(scope="session")
def fixed(cluster: Any) -> Iterator[ClusterEnv]:
    """Observations and actions of every kind that fits into arrays, nested."""
    yield from _shared(cluster, SAMPLE, observes="all fixed", acts="a tuple")


@pytest.fixture(scope="session")
def free(cluster: Any) -> Iterator[ClusterEnv]:
    """Observations and actions of every kind that does not."""
    yield from _shared(cluster, SAMPLE, observes="all free", acts="all free")


@pytest.fixture(scope="session")
def dressed(cluster: Any) -> Iterator[ClusterEnv]:
    """Trial environments with wrappers, arguments of their own, and pictures."""
    assert {TimeLimit, FlattenObservation} <= {getattr(each, "func", each) for each in DRESS}
    yield from _trial(cluster, wrappers=DRESS, render_mode="rgb_array")
