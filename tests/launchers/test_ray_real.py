"""Nodes on a real Ray with two hosts.

Ray takes the outward address of its machine, so all of it lives in a network namespace that has only loopback. What is
tried there are the functions `inside_...` below, each in a process of its own.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from clusterenv.clusters import Ray
from clusterenv.launchers import ray as ray_module
from clusterenv.launchers.ray import RayLauncher
from clusterenv.testing.contracts import KEYS, StandIn, make_stand_in
from tests.launchers.kit import wait_gone
from tests.rays import LIMIT_S, ROOT, environment, need, need_ray, start_two_hosts, two_hosts
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CPUS = 2  # of each of the two hosts


@pytest.fixture(name="inside", scope="module")
def _inside() -> Iterator[Callable[[str], None]]:
    """Runs a function of this file inside the namespace, with the address of a Ray of two hosts in RAY_ADDRESS."""
    need_ray()
    tools = os.geteuid() == 0 and shutil.which("ip") and shutil.which("nsenter")
    need(bool(tools), "a network namespace needs root, ip and nsenter")
    name = f"clusterenv-ray-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    need(made.returncode == 0, f"no network namespace: {made.stderr.strip()}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ray"))  # short: the names of Unix sockets may not be long
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        enter = ["nsenter", f"--net=/run/netns/{name}"]
        words = [*enter, sys.executable, "-m", "tests.launchers.test_ray_real"]
        with two_hosts(enter, folder, CPUS) as address:
            yield lambda what: _run([*words, what], {**environment(folder), "RAY_ADDRESS": address}, folder)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _run(words: list[str], env: dict[str, str], folder: pathlib.Path) -> None:
    with (folder / f"{words[-1]}.log").open("wb") as log:
        process = subprocess.Popen(words, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        process.wait(2 * LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, (folder / f"{words[-1]}.log").read_text()[-4000:]


def test_two_nodes_on_two_hosts_get_the_keys_come_back_and_leave_nothing(inside: Callable[[str], None]) -> None:
    inside("two_nodes")


@pytest.mark.fault("F53")
def test_too_few_hosts_and_too_few_cpus(inside: Callable[[str], None]) -> None:
    inside("placement")


def test_nodes_wait_for_cpus_that_others_use(inside: Callable[[str], None]) -> None:
    inside("waiting")


def test_nodes_and_actors_end_with_a_killed_head(inside: Callable[[str], None]) -> None:
    inside("killed_head")


def test_a_node_that_cannot_be_started_is_told(inside: Callable[[str], None]) -> None:
    inside("bad_python")


def test_the_ray_of_the_users_own_program_is_used(inside: Callable[[str], None]) -> None:
    inside("own_ray")


def test_the_same_observations_as_in_one_process_and_a_killed_node_is_replaced(inside: Callable[[str], None]) -> None:
    inside("batch")


def test_a_new_ray_on_this_host_ends_with_the_run(inside: Callable[[str], None]) -> None:
    inside("new_ray")


def test_a_ray_that_is_not_there(inside: Callable[[str], None]) -> None:
    inside("no_ray")


@pytest.mark.fault("F53")
def test_a_ray_that_goes_away(inside: Callable[[str], None]) -> None:
    inside("ray_goes_away")


# Inside the namespace.


@contextlib.contextmanager
def launched(node: StandIn, do: str = "wait", **options: Any) -> Iterator[RayLauncher]:
    launcher = RayLauncher(Ray(**{"nodes": 2, "python": node.program, **options}))
    launcher.start(node.job(do))
    try:
        yield launcher
    finally:
        launcher.close(20.0)


def fresh_stand_in() -> StandIn:
    return make_stand_in(pathlib.Path(tempfile.mkdtemp(dir=os.environ["HOME"])))


def wait_running(launcher: RayLauncher, count: int) -> None:
    start = f"{count} of {launcher.nodes} nodes run"
    wait_until(
        lambda: launcher.status().startswith(start), LIMIT_S, lambda: f"{launcher.status()} {launcher.failure()}"
    )


def ready(log: str) -> bool:
    return "is ready" in log


def free_cpus() -> float:
    ray: Any = importlib.import_module("ray")
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    return float(ray.available_resources().get("CPU", 0.0))


def inside_two_nodes() -> None:
    node = fresh_stand_in()
    with launched(node) as launcher:
        records = node.wait_for(2, LIMIT_S)
        assert [record["keys"] for record in records] == [KEYS + "\n"] * 2
        words = sorted(" ".join(record["argv"]) for record in records)
        assert words == sorted(" ".join(node.job().command("-", index)[1:]) for index in (0, 1))
        actors = [psutil.Process(record["pid"]).parent() for record in records]
        assert len({actor.ppid() for actor in actors if actor}) == 2, "each on a Ray host of its own"
        for record in records:
            for file in ("environ", "cmdline"):
                assert b"canary" not in pathlib.Path(f"/proc/{record['pid']}/{file}").read_bytes()
        wait_running(launcher, 2)
        assert launcher.failure() is None
        wait_until(lambda: list(map(ready, launcher.logs().values())) == [True, True], LIMIT_S)

        # A node that ends is told, and started again when the head wants it.
        lost = int(launcher.logs()["node 1"].split()[1])
        os.kill(lost, signal.SIGKILL)
        wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
        assert "node 1 on " in str(launcher.failure())
        assert "ended with signal SIGKILL: stand-in" in str(launcher.failure())
        assert launcher.restart(1)
        assert launcher.failure() is None
        assert len(node.wait_for(3, LIMIT_S)) == 3
        wait_running(launcher, 2)
        assert launcher.failure() is None

        # An actor that ends is restarted by Ray, and takes its old node with it.
        actor = psutil.Process(records[0]["pid"] if records[0]["pid"] != lost else records[1]["pid"]).parent()
        assert actor is not None
        child = actor.children()[0].pid
        actor.kill()
        wait_gone(child)
        records = node.wait_for(4, LIMIT_S)
        wait_running(launcher, 2)
        assert launcher.failure() is None
        assert not launcher.restart(2)
    wait_gone(*(record["pid"] for record in records))
    wait_until(lambda: free_cpus() == 2 * CPUS, LIMIT_S, lambda: str(free_cpus()))
    launcher.close(1.0)
    assert launcher.failure() is None
    assert launcher.status() == "0 of 2 nodes run on Ray (closed)"
    assert not launcher.restart(0)


def inside_placement() -> None:
    node, told = fresh_stand_in(), []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("clusterenv").addHandler(handler)
    with launched(node, nodes=3, cpus=1) as launcher:
        node.wait_for(3, LIMIT_S)
        wait_running(launcher, 3)
        assert told == ["ray: Ray has 2 hosts with 2, 2 CPU: some hosts run several of the 3 nodes."]
    with launched(node, nodes=3, cpus=2) as launcher:
        wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
        words = "3 nodes with 2 CPU each cannot be placed: Ray has 2 hosts with 2, 2 CPU."
        assert str(launcher.failure()).startswith(words)
        start = time.monotonic()
        launcher.close(LIMIT_S)
        assert time.monotonic() - start < LIMIT_S
    assert len(node.records()) == 3


def inside_waiting() -> None:
    first, second = fresh_stand_in(), fresh_stand_in()
    with launched(first, cpus=2) as launcher:
        first.wait_for(2, LIMIT_S)
        with launched(second, cpus=1) as waiting:
            wait_until(lambda: "waiting for 2 places with 1 CPU each; 0 CPU are free" in waiting.status(), LIMIT_S)
            assert waiting.failure() is None
            assert waiting.restart(0), "it starts as soon as there is room"
            launcher.close(20.0)
            second.wait_for(2, LIMIT_S)
            wait_running(waiting, 2)


def inside_killed_head() -> None:
    node = fresh_stand_in()
    code = f"""
import time
from clusterenv.clusters import Ray
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.ray import RayLauncher
launcher = RayLauncher(Ray(nodes=2, python={node.program!r}))
launcher.start(NodeJob({node.job().arguments!r}, "keys", {node.program!r}))
time.sleep(1000)
"""
    head = subprocess.Popen([sys.executable, "-c", code])
    try:
        records = node.wait_for(2, LIMIT_S)
        (driver,) = psutil.Process(head.pid).children()
    finally:
        head.kill()
        head.wait()
    wait_gone(driver.pid, *(record["pid"] for record in records), limit_s=30.0)
    wait_until(lambda: free_cpus() == 2 * CPUS, LIMIT_S)


def inside_bad_python() -> None:
    node = fresh_stand_in()
    with launched(StandIn("/no/such/python", node.folder)) as missing, launched(node, "fail") as failing:
        for launcher in (missing, failing):
            wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)  # noqa: B023 (waited for here)
        assert "could not be started with '/no/such/python'" in str(missing.failure())
        assert "ended with exit code 1: " in str(failing.failure())
        assert "no module named clusterenv" in str(failing.failure())


def inside_own_ray() -> None:
    assert free_cpus() == 2 * CPUS
    del os.environ["RAY_ADDRESS"]
    node = fresh_stand_in()
    with launched(node) as launcher:
        node.wait_for(2, LIMIT_S)
        wait_until(lambda: free_cpus() == 2 * CPUS - 2, LIMIT_S)
        assert launcher.failure() is None
    wait_until(lambda: free_cpus() == 2 * CPUS, LIMIT_S, lambda: "the user's own connection goes on")


def inside_batch() -> None:
    import clusterenv

    with clusterenv.make_vec("CartPole-v1", num_envs=4, cluster="inproc") as envs:
        expected = _observations(envs)
    with clusterenv.make_vec("CartPole-v1", num_envs=4, cluster="ray:nodes=2,workers=1") as envs:
        assert _observations(envs) == expected
        nodes = _node_processes()
        assert len(nodes) == 2
        nodes[0].kill()
        lost = ["worker_lost" in envs.step(envs.action_space.sample())[4] for _ in range(20)]
        assert any(lost)
        assert not lost[-1]
        assert len(_node_processes()) == 2
        assert nodes[1].is_running(), "the other one was left alone"
    wait_until(lambda: not _node_processes(), LIMIT_S)
    wait_until(lambda: free_cpus() == 2 * CPUS, LIMIT_S)


def _observations(envs: Any) -> list[Any]:
    envs.action_space.seed(7)
    rows = [envs.reset(seed=3)[0].tolist()]
    return rows + [envs.step(envs.action_space.sample())[0].tolist() for _ in range(50)]


def _node_processes() -> list[psutil.Process]:
    """The node programs: children of actors, in this network namespace."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.readlink(f"/proc/{process.pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                continue
            if process.cmdline()[1:4] == ["-m", "clusterenv", "node"] and "ray::" in _name_of(process.parent()):
                found.append(process)
    return found


def _name_of(process: psutil.Process | None) -> str:
    return "" if process is None else " ".join(process.cmdline())


def inside_new_ray() -> None:
    del os.environ["RAY_ADDRESS"]
    node = fresh_stand_in()
    with launched(node, address="local", nodes=3, cpus=2) as launcher:
        records = node.wait_for(3, LIMIT_S)
        rays = [each.pid for each in psutil.Process().children(recursive=True)]
        assert len(rays) > 3
        wait_running(launcher, 3)
    wait_gone(*rays, *(record["pid"] for record in records))


def inside_no_ray() -> None:
    ray_module.CONNECT_S = 5.0
    node = fresh_stand_in()
    with launched(node, address="127.0.0.1:1") as launcher:
        wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
        assert str(launcher.failure()).startswith("Ray at '127.0.0.1:1' did not answer within 5 s.")
        start = time.monotonic()
        launcher.close(1.0)
        assert time.monotonic() - start < LIMIT_S
    assert launcher.status() == "0 of 2 nodes run on Ray (closed)"


def inside_ray_goes_away() -> None:
    cluster, node = start_two_hosts(CPUS), fresh_stand_in()
    with launched(node, address=cluster.address) as launcher:
        records = node.wait_for(2, LIMIT_S)
        wait_running(launcher, 2)
        start = time.monotonic()
        cluster.shutdown()
        wait_until(lambda: launcher.failure() is not None, 2 * LIMIT_S, launcher.status)
        sys.stderr.write(json.dumps([time.monotonic() - start, launcher.failure()]) + "\n")
        assert "lost" in str(launcher.failure())
    wait_gone(*(record["pid"] for record in records))


if __name__ == "__main__":
    globals()[f"inside_{sys.argv[1]}"]()
