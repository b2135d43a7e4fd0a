"""A real Ray of two hosts for tests, as a program that ends with its standard input.

Ray takes the outward address of its machine and asks nobody who he is, so it is started only where there is nothing but
loopback: in a network namespace.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.launchers.kit import wait_gone
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
# Ray starts in five seconds on a quiet machine, and in half a minute on a busy one.
LIMIT_S = 90.0


def need(there: bool, reason: str) -> None:
    """Skip the test, or fail it, if something that it needs is not there."""
    if not there:
        (pytest.fail if os.environ.get("CLUSTERENV_NEED_SERVICES") == "1" else pytest.skip)(reason)


def need_ray() -> None:
    """Skip the test, or fail it, if Ray is not installed."""
    need(importlib.util.find_spec("ray") is not None, 'ray is missing: pip install "clusterenv[ray]"')


def environment(folder: pathlib.Path) -> dict[str, str]:
    """The environment in which Ray, and what uses it, is started."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    env |= {"HOME": str(folder), "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    return env | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


@contextlib.contextmanager
def two_hosts(prefix: list[str], folder: pathlib.Path, cpus: int) -> Iterator[str]:
    """The address of a Ray with two hosts, which ends with the context.

    Args:
        prefix: words before the program, such as those that enter a namespace.
        folder: for its files; with a short path, because the names of Unix sockets may not be long.
        cpus: of each host.
    """
    # Ray starts and ends processes as it likes: as descendants of ours they would look like leaks of a test.
    words = ["setsid", "--fork", *prefix, sys.executable, "-m", "tests.rays", str(cpus)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            words, env=environment(folder), cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    assert process.stdin is not None
    told = folder / "address"
    try:
        process.wait(LIMIT_S)
        wait_until(told.exists, LIMIT_S, lambda: (folder / "log").read_text()[-2000:])
        yield told.read_text()
    finally:
        process.stdin.close()
        if (folder / "pid").exists():
            wait_gone(int((folder / "pid").read_text()), limit_s=LIMIT_S)


def start_two_hosts(cpus: int) -> Any:
    """A Ray of two hosts, as Ray's own class for it."""
    utils: Any = importlib.import_module("ray.cluster_utils")
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": cpus, "include_dashboard": False})
    cluster.add_node(num_cpus=cpus)
    return cluster


def serve(cpus: int) -> None:
    """Run until standard input closes."""
    folder = pathlib.Path(os.environ["HOME"])
    (folder / "pid").write_text(str(os.getpid()))
    cluster = start_two_hosts(cpus)
    (folder / "part").write_text(cluster.address)
    (folder / "part").rename(folder / "address")
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
