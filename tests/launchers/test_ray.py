"""Nodes on Ray: the launcher, with a driver of our own. The real thing is in test_ray_real.py."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.clusters import Ray
from clusterenv.errors import ConfigError, LaunchError
from clusterenv.launchers import ray as ray_module
from clusterenv.launchers.choose import launcher_for
from clusterenv.launchers.ray import RayLauncher, cpus_of
from clusterenv.testing.contracts import KEYS, StandIn
from tests.launchers.kit import LIMIT_S
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _as_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here imports Ray."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_as_many_cpus_are_set_aside_as_there_are_workers() -> None:
    assert [cpus_of(Ray()), cpus_of(Ray(workers=3)), cpus_of(Ray(workers=3, cpus=2))] == [1, 3, 2]


def driven(monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    """Have this program run in place of the driver: `tell(...)` reports, `take()` takes the next command."""
    program = f"""
import json, os, sys, time
def tell(**what): os.write(int(sys.argv[1]), json.dumps(what).encode() + b"\\n")
def take(): return json.loads(sys.stdin.readline() or "null")
order = take()
{does}
while take(): pass
"""
    monkeypatch.setattr(ray_module, "_DRIVER", program)


@contextlib.contextmanager
def launched(node: StandIn, **options: Any) -> Iterator[RayLauncher]:
    launcher = RayLauncher(Ray(**{"nodes": 2, **options}))
    launcher.start(node.job())
    try:
        yield launcher
    finally:
        launcher.close(0.0)


def test_the_driver_gets_the_order_on_standard_input(node: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    driven(monkeypatch, 'tell(phase=json.dumps(order), problem="")')
    with launched(node, workers=3, address="a:1") as launcher:
        wait_until(lambda: "cluster" in launcher.status(), LIMIT_S)
        order = json.loads(launcher.status().partition("(")[2][:-1])
    assert order["cluster"] == {"nodes": 2, "cpus": 3, "namespace": "clusterenv", "address": "a:1"}
    assert order["job"] == {"arguments": list(node.job().arguments), "keys": KEYS, "python": ""}


def test_a_python_that_was_named_is_used(node: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    driven(monkeypatch, 'tell(phase=order["job"]["python"], problem="")')
    with launched(node, python=node.program) as launcher:
        wait_until(lambda: node.program in launcher.status(), LIMIT_S)


def test_how_nodes_fare_is_told(
    node: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    does = """
tell(warning="some hosts run several")
os.write(int(sys.argv[1]), b"{nonsense\\n")
tell(phase="Ray starts the actors", problem="")
tell(node=0, state="running", problem=None, log="I am here\\n", restarts=0)
tell(node=1, state="ended", problem="on b ended with exit code 1: no", log="no\\n", restarts=0)
assert take() == {"restart": 1}
tell(node=1, state="ended", problem="old news", log="no\\n", restarts=0)
time.sleep(0.3)
tell(node=1, state="running", problem=None, log="no\\nnow\\n", restarts=1)
"""
    driven(monkeypatch, does)
    with caplog.at_level(logging.WARNING), launched(node) as launcher:
        wait_until(lambda: launcher.failure() is not None, LIMIT_S)
        assert launcher.failure() == "node 1 on b ended with exit code 1: no"
        assert launcher.status() == "1 of 2 nodes run on Ray (node 1: ended)"
        assert launcher.logs() == {"node 0": "I am here\n", "node 1": "no\n"}
        assert launcher.restart(1)
        wait_until(lambda: launcher.failure() is None and launcher.status().startswith("2 of 2"), LIMIT_S)
        assert launcher.logs()["node 1"] == "no\nnow\n"
        assert caplog.messages == ["ray: some hosts run several"]
    assert not launcher.restart(1)


def test_a_node_that_ray_has_given_up_cannot_be_restarted(node: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    driven(monkeypatch, 'tell(node=1, state="lost", problem="is lost: ActorDiedError: no", log="", restarts=0)')
    with launched(node) as launcher:
        wait_until(lambda: launcher.failure() == "node 1 is lost: ActorDiedError: no", LIMIT_S)
        assert not launcher.restart(1)
        assert launcher.restart(0)
        assert not launcher.restart(2)


def test_what_ray_says_about_itself_is_a_failure(node: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    driven(monkeypatch, 'tell(phase="", problem="Ray cannot be used: no")')
    with launched(node) as launcher:
        wait_until(lambda: launcher.failure() == "Ray cannot be used: no", LIMIT_S)


def test_a_driver_that_ends_is_a_failure_with_its_last_words(node: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    driven(monkeypatch, 'sys.exit("the head of Ray is gone")')
    with launched(node) as launcher:
        wait_until(lambda: launcher.failure() is not None, LIMIT_S)
        assert launcher.failure() == (
            "the connection to Ray is lost (exit code 1 of the driver): the head of Ray is gone"
        )
        assert launcher.status() == "the connection to Ray is lost"
        assert not launcher.restart(0)


@pytest.mark.fault("F53")
def test_a_ray_that_does_not_answer_is_a_failure(node: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    driven(monkeypatch, 'print("trying", flush=True)')
    with launched(node, address="a:1") as launcher:
        assert launcher.failure() is None
        assert launcher.status() == "0 of 2 nodes run on Ray (connecting to Ray)"
        monkeypatch.setattr(ray_module, "CONNECT_S", 0.0)
        wait_until(lambda: launcher.failure() == "Ray at 'a:1' did not answer within 0 s. trying", LIMIT_S)


def test_a_driver_that_hangs_is_killed(
    node: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driven(monkeypatch, 'tell(phase="asking", problem="")\ntime.sleep(1000)')
    monkeypatch.setattr(ray_module, "END_S", 0.2)
    with launched(node) as launcher:
        wait_until(lambda: "asking" in launcher.status(), LIMIT_S)
        launcher.close(0.1)
    assert "did not end within 0 s and is killed" in caplog.text


def test_a_driver_that_is_still_connecting_is_killed_at_once(node: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    driven(monkeypatch, "time.sleep(1000)")
    with launched(node) as launcher:
        start = time.monotonic()
        launcher.close(1000.0)
        assert time.monotonic() - start < LIMIT_S


def test_a_driver_that_cannot_be_started_is_a_launch_error(node: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(node.folder / "no-python"))
    launcher = RayLauncher(Ray())
    with pytest.raises(LaunchError, match=r"the driver of Ray could not be started: .*no-python"):
        launcher.start(node.job())
    launcher.close(1.0)


def test_starting_twice_is_refused(node: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    driven(monkeypatch, "")
    with launched(node) as launcher, pytest.raises(LaunchError, match="started before"):
        launcher.start(node.job())


def test_before_the_start_there_is_nothing_to_tell(node: StandIn) -> None:
    launcher = launcher_for(Ray(nodes=3))
    assert (launcher.nodes, launcher.failure(), launcher.logs(), launcher.restart(0)) == (3, None, {}, False)
    assert launcher.status() == "0 of 3 nodes run on Ray (not started)"
    launcher.close(1.0)


def test_the_script_tells_what_is_asked_for_and_holds_no_keys(node: StandIn) -> None:
    script = RayLauncher(Ray(nodes=2, workers=3, address="a:1")).script(node.job())
    assert script.splitlines()[:2] == [
        "# Ray: a:1; namespace clusterenv",
        "# 2 bundles of 3 CPU, STRICT_SPREAD; SPREAD if Ray has fewer hosts than that.",
    ]
    assert script.splitlines()[3:] == [node.job().line("-", 0), node.job().line("-", 1)]
    assert "canary" not in script
    assert "RAY_ADDRESS" in RayLauncher(Ray()).script(node.job())


def test_without_ray_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "clusterenv\[ray\]"'):
        RayLauncher(Ray())
