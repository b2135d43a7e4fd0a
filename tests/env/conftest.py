"""Fixtures of the conformance suite: the same tests over the environments in this process and on two workers."""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv import ClusterEnv
from tests.zoo import counting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLUSTERS = ("inproc", "local:2")


@pytest.fixture(scope="session", autouse=True)
def cheap_collections() -> None:
    """The check for leaks collects garbage twice per test: spare it the million objects of the libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest) -> str:
    """Where the environments live."""
    return str(request.param)


@pytest.fixture
def make(cluster: str) -> Iterator[Callable[..., ClusterEnv]]:
    """Make a batch on the cluster of this test; it is closed afterwards."""
    yield from _maker(cluster)


@pytest.fixture
def make_here() -> Iterator[Callable[..., ClusterEnv]]:
    """The same, always in this process, in two blocks: for what cannot depend on where the environments are."""
    yield from _maker("inproc:2")


@pytest.fixture
def make_local() -> Iterator[Callable[..., ClusterEnv]]:
    """The same, always on worker processes: for what does not exist in one process, such as being late."""
    yield from _maker("local:2")


@pytest.fixture(scope="module")
def calm(cluster: str) -> Iterator[ClusterEnv]:
    """Four counting environments that a whole module shares. Tests leave them open, with nothing pending."""
    envs = ClusterEnv(counting(4, infos=True), cluster=cluster)
    yield envs
    envs.close()


def _maker(default: str) -> Iterator[Callable[..., ClusterEnv]]:
    opened: list[ClusterEnv] = []

    def make(env_fns: Any, *, cluster: str = default, **kwargs: Any) -> ClusterEnv:
        envs = ClusterEnv(env_fns, cluster=cluster, **kwargs)
        opened.append(envs)
        return envs

    yield make
    while opened:  # the memory of a batch lives as long as somebody holds the batch
        envs = opened.pop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a test that ends with a call under way
            envs.close()
