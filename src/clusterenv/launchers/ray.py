"""Nodes on the hosts of a Ray cluster: one actor per node, and the node as a process beside its actor.

Ray is used in a process of its own, the driver, to which we talk in lines of JSON. Ray waits minutes for an address
that does not answer, ends its process when its head is gone, and takes signals for itself: the head of a run must
suffer none of that. When the driver ends, however it ends, Ray ends the actors and frees what it set aside for them;
when an actor ends, the standard input of its node closes, and the node ends itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterenv import extras
from clusterenv.errors import LaunchError
from clusterenv.launchers.ray_driver import END_S
from clusterenv.launchers.tail import file_tail, last_lines

if TYPE_CHECKING:
    from typing import IO

    from clusterenv.clusters import Ray
    from clusterenv.launchers.base import NodeJob

_log = logging.getLogger(__name__)

# Ray itself would try for two minutes. A new one on this host is there after five to ten seconds.
CONNECT_S = 45.0
_DRIVER = "import sys; from clusterenv.launchers.ray_driver import drive; drive(int(sys.argv[1]))"


@dataclass(slots=True)
class _Node:
    """What is known of one node. Changed by the thread that reads the driver's words, but for `asked`."""

    state: str = "waiting"
    problem: str | None = None
    log: str = ""
    restarts: int = 0  # how many the driver has carried out
    asked: int = 0  # how many we have asked for


class RayLauncher:
    """Starts the nodes of a `Ray` cluster."""

    def __init__(self, cluster: Ray) -> None:
        if importlib.util.find_spec("ray") is None:
            extras.load("ray", extra="ray", purpose="a Ray cluster")
        self._cluster = cluster
        self._nodes = [_Node() for _ in range(cluster.nodes)]
        self._phase, self._problem = "not started", ""
        self._connected, self._started_s = False, 0.0
        self._driver: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None
        self._reader: threading.Thread | None = None

    @property
    def nodes(self) -> int:
        """How many nodes it starts."""
        return self._cluster.nodes

    def script(self, job: NodeJob) -> str:
        """What Ray would be asked for."""
        cluster, cpus = self._cluster, cpus_of(self._cluster)
        where = cluster.address or "RAY_ADDRESS, or the one that runs on this host, or a new one on this host"
        return (
            f"# Ray: {where}; namespace {cluster.namespace}\n"
            f"# {self.nodes} bundles of {cpus} CPU, STRICT_SPREAD; SPREAD if Ray has fewer hosts than that.\n"
            "# In each bundle an actor with max_restarts=-1, which runs this, with the keys on standard input"
            + ("" if cluster.python else ", by its own Python")
            + ":\n"
        ) + "".join(f"{job.line('-', index)}\n" for index in range(self.nodes))

    def start(self, job: NodeJob) -> None:
        """Start the driver. What goes wrong with Ray is told by `failure`."""
        if self._driver is not None:
            raise LaunchError("these nodes were started before. Make a new launcher for new ones.")
        self._phase, self._started_s = "connecting to Ray", time.monotonic()
        # The Python of an actor has clusterenv for sure, wherever it lies on that host.
        job = dataclasses.replace(job, python=self._cluster.python and job.python)
        order = {"cluster": _order_of(self._cluster), "job": dataclasses.asdict(job)}
        try:
            self._begin()
            self._say(order)
        except BaseException as error:
            self.close(0.0)
            if isinstance(error, OSError):
                raise LaunchError(f"the driver of Ray could not be started: {error}.") from error
            raise

    def _begin(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        reports, theirs = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(reports,), name="clusterenv-ray", daemon=True)
        self._reader.start()
        try:
            self._driver = subprocess.Popen(
                [sys.executable, "-c", _DRIVER, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                bufsize=0,
                pass_fds=(theirs,),
                start_new_session=True,  # Ctrl-C reaches the head only
            )
        finally:
            os.close(theirs)

    def restart(self, node: int) -> bool:
        """Have the actor end what is left of this node and start it again; False if Ray has given up the actor."""
        if not 0 <= node < self.nodes or self._nodes[node].state == "lost" or not self._running():
            return False
        self._nodes[node].asked += 1
        self._say({"restart": node})
        return True

    def status(self) -> str:
        """How many nodes run, and what Ray is doing for the others."""
        if self._driver is not None and not self._running():
            return "the connection to Ray is lost"
        running = sum(each.state == "running" for each in self._nodes)
        others = [f"node {index}: {each.state}" for index, each in enumerate(self._nodes) if each.state != "running"]
        if len(others) in (0, self.nodes):
            return f"{running} of {self.nodes} nodes run on Ray" + (f" ({self._phase})" if others else "")
        return f"{running} of {self.nodes} nodes run on Ray ({', '.join(others[:8])})"

    def failure(self) -> str | None:
        """Why Ray gives no more nodes; and the last words of each node that ended badly."""
        if self._driver is None or self._problem:
            return self._problem if self._driver is not None else None
        if not self._running():
            said = self._last_words() or "it wrote nothing"
            return f"the connection to Ray is lost (exit code {self._driver.returncode} of the driver): {said}"
        if not self._connected and time.monotonic() - self._started_s > CONNECT_S:
            where = repr(self._cluster.address or os.environ.get("RAY_ADDRESS", "auto"))
            return f"Ray at {where} did not answer within {CONNECT_S:.0f} s. {self._last_words()}"
        known = [(index, each) for index, each in enumerate(self._nodes) if each.restarts >= each.asked]
        return "\n".join(f"node {index} {each.problem}" for index, each in known if each.problem) or None

    def logs(self) -> dict[str, str]:
        """The last lines that each node wrote."""
        return {f"node {index}": each.log for index, each in enumerate(self._nodes) if each.log}

    def close(self, limit_s: float) -> None:
        """Have the driver end the nodes, the actors and what was set aside; end it if that takes too long."""
        driver, self._driver = self._driver, None
        if driver is not None:
            self._end(driver, limit_s)
        if self._reader is not None:
            self._reader.join(END_S)
        if self._output is not None:
            self._output.close()
            self._nodes, self._phase = [_Node("ended", log=each.log) for each in self._nodes], "closed"

    def _end(self, driver: subprocess.Popen[bytes], limit_s: float) -> None:
        assert driver.stdin is not None  # noqa: S101 (stdin=PIPE)
        with contextlib.suppress(OSError):
            driver.stdin.write(json.dumps({"end": limit_s}).encode() + b"\n")
        driver.stdin.close()
        try:
            driver.wait(limit_s + END_S if self._connected else 0.0)
        except subprocess.TimeoutExpired:
            if self._connected:  # else there is nothing yet that it could leave behind
                _log.warning("ray: the driver did not end within %.0f s and is killed", limit_s + END_S)
        # Also after its end: a Ray that it started belongs to its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(END_S)

    def _running(self) -> bool:
        return self._driver is not None and self._driver.poll() is None

    def _say(self, message: dict[str, Any]) -> None:
        if self._driver is not None and self._driver.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended, which `failure` tells
                self._driver.stdin.write(json.dumps(message).encode() + b"\n")

    def _last_words(self) -> str:
        return "" if self._output is None else last_lines(file_tail(self._output.fileno()), 4)

    def _read(self, reports: int) -> None:
        """Take what the driver tells, to its end."""
        with open(reports, encoding="utf-8") as lines:
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):  # half a line, of a driver that was killed
                    self._heard(json.loads(line))

    def _heard(self, told: dict[str, Any]) -> None:
        if "node" in told:
            known = self._nodes[told["node"]]
            known.state, known.problem, known.log = told["state"], told["problem"], told["log"]
            known.restarts = told["restarts"]
        elif "warning" in told:
            _log.warning("ray: %s", told["warning"])
        else:
            self._phase, self._problem, self._connected = told["phase"], told["problem"], True


def cpus_of(cluster: Ray) -> int:
    """The CPUs that Ray sets aside for each node."""
    return cluster.cpus or cluster.workers or 1


def _order_of(cluster: Ray) -> dict[str, Any]:
    """What the driver must know."""
    address = cluster.address or _address_of_this_process()
    return {"nodes": cluster.nodes, "cpus": cpus_of(cluster), "namespace": cluster.namespace, "address": address}


def _address_of_this_process() -> str:
    """The Ray that the user's own program is connected to, if it uses Ray."""
    ray = sys.modules.get("ray")
    return str(ray.get_runtime_context().gcs_address) if ray is not None and ray.is_initialized() else ""
