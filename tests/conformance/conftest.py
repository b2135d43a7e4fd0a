"""The same tests over every kind of cluster. Batches are shared by all tests of a cluster: `reset` makes them fresh."""

from __future__ import annotations

import gc
import os
import pathlib
import shutil
import tempfile
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.wrappers import FlattenObservation, TimeLimit

from clusterenv import ClusterEnv, make_vec
from clusterenv.clusters import Ray, Slurm, Ssh
from clusterenv.transport.addresses import LOOPBACK, own_addresses
from tests.conformance.kit import DRESS, ENGINES, NUM_ENVS, SAMPLE, TEXTS, TRIAL, USUAL, WALK, slots
from tests.rays import need, need_ray, two_hosts
from tests.services import SshServer, interpreter, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterenv.config import Cluster


# The batches that all tests share live at one time, with two nodes each.
RAY_CPUS = 16


@pytest.fixture(scope="session", autouse=True)
def cheap_collections() -> None:
    """The check for leaks collects garbage twice per test: spare it the million objects of the libraries."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test over the clusters that were asked for, as far as it is about them."""
    if "cluster" not in metafunc.fixturenames:
        return
    asked = metafunc.config.getoption("engines")
    chosen = tuple(asked.split(",")) if asked else USUAL
    if not asked and metafunc.definition.get_closest_marker("walk"):
        chosen = WALK
    if unknown := set(chosen) - {*USUAL, *ENGINES}:
        raise pytest.UsageError(f"--engines: {sorted(unknown)} is none of {[*USUAL, *ENGINES]}.")
    about = metafunc.definition.get_closest_marker("kinds")
    kinds = [kind for kind in chosen if about is None or kind in about.args]
    metafunc.parametrize("cluster", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | Cluster]:
    """Where the environments live."""
    kind = str(request.param)
    if kind in TEXTS:
        yield TEXTS[kind]
    elif kind == "ssh":
        sshd = SshServer(path_of("CLUSTERENV_TEST_SSH"))
        known, identity = sshd.file("known_hosts"), sshd.file("id")
        python = interpreter(tmp_path_factory.mktemp(kind))
        yield Ssh(hosts=sshd.hosts, known_hosts=known, identity=identity, python=python, workers=1)
    elif kind == "slurm":
        folder = tmp_path_factory.mktemp(kind)
        os.environ["SLURM_CONF"] = str(path_of("CLUSTERENV_TEST_SLURM_CONF"))
        yield Slurm(nodes=2, workers=1, python=interpreter(folder), folder=str(folder / "keys"))
    else:
        yield from _ray_cluster()


def _ray_cluster() -> Iterator[Cluster]:
    need_ray()
    alone = "unshare --net sh -c 'ip link set lo up && exec python -m pytest tests/conformance --engines ray'"
    need(own_addresses() == [LOOPBACK], f"Ray would listen on {own_addresses()}. Give it only loopback: {alone}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ray"))
    try:
        with two_hosts([], folder, RAY_CPUS) as address:
            yield Ray(nodes=2, workers=1, address=address)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
