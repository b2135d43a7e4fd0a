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
import queue
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterenv import extras
from clusterenv.clusters import Ray, Tcp
from clusterenv.errors import LaunchError, words_of
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.processes import ProcessLauncher
from clusterenv.launchers.tail import file_tail, last_lines, shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

_log = logging.getLogger(__name__)

# Ray itself would try for two minutes. A new one on this host is there after five to ten seconds.
CONNECT_S = 45.0
# How often the driver asks each actor how its node fares.
LOOK_S = 0.5
# What is not ended properly may go on to take CPUs of others: it is worth some time, however short the limit.
_END_S = 8.0
# Of what a node wrote last.
_LOG_CHARACTERS = 4000
_RESTARTING = "Ray restarts its actor"
_DRIVER = "import sys; from clusterenv.launchers.ray import drive; drive(int(sys.argv[1]))"


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
            self._reader.join(_END_S)
        if self._output is not None:
            self._output.close()
            self._nodes, self._phase = [_Node("ended", log=each.log) for each in self._nodes], "closed"

    def _end(self, driver: subprocess.Popen[bytes], limit_s: float) -> None:
        assert driver.stdin is not None  # noqa: S101 (stdin=PIPE)
        with contextlib.suppress(OSError):
            driver.stdin.write(json.dumps({"end": limit_s}).encode() + b"\n")
        driver.stdin.close()
        try:
            driver.wait(limit_s + _END_S if self._connected else 0.0)
        except subprocess.TimeoutExpired:
            if self._connected:  # else there is nothing yet that it could leave behind
                _log.warning("ray: the driver did not end within %.0f s and is killed", limit_s + _END_S)
        # Also after its end: a Ray that it started belongs to its group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(_END_S)

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


@dataclass(frozen=True, slots=True)
class Plan:
    """How the nodes are spread over the hosts of Ray.

    Attributes:
        strategy: Ray's word for it; "" if they cannot be placed.
        words: what is to be said about it, if anything.
    """

    strategy: str
    words: str = ""


def plan(nodes: int, cpus: int, hosts: Sequence[float]) -> Plan:
    """Each node on a host of its own if there are enough; `hosts` are the CPUs of each host of Ray.

    Example:
        >>> plan(2, 4, [8.0, 8.0]).strategy
        'STRICT_SPREAD'
    """
    able = [int(has // cpus) for has in hosts if has >= cpus]
    sizes = ", ".join(f"{has:g}" for has in sorted(hosts, reverse=True)[:16]) + (", ..." if len(hosts) > 16 else "")
    has = f"Ray has {len(hosts)} host{'s' if len(hosts) != 1 else ''} with {sizes or 'no'} CPU"
    if len(able) >= nodes:
        return Plan("STRICT_SPREAD")
    if sum(able) >= nodes:
        return Plan("SPREAD", f"{has}: some hosts run several of the {nodes} nodes.")
    return Plan("", f"{nodes} nodes with {cpus} CPU each cannot be placed: {has}. Ask for less, or add hosts to Ray.")


# On a host of Ray.


@dataclass(frozen=True, slots=True, repr=False)
class OneJob(NodeJob):
    """The job of the one node that runs beside an actor."""

    index: int

    def command(self, key_file: str, node: int | None = None) -> list[str]:
        """The words of the command, with the number that this node has in the whole cluster."""
        return NodeJob.command(self, key_file, self.index)


class NodeActor:
    """Runs one node on the host of its actor. When Ray restarts the actor, this starts the node anew."""

    def __init__(self, job: OneJob) -> None:
        self._job = job if job.python else dataclasses.replace(job, python=sys.executable)
        self._process = ProcessLauncher(Tcp(nodes=1))
        self.restart()

    def restart(self) -> None:
        """End what is left of the node and start it again."""
        self._problem: str | None = None
        try:
            if not self._process.restart(0):
                self._process = ProcessLauncher(Tcp(nodes=1))
                self._process.start(self._job)
        except LaunchError as error:
            self._problem = f"on {socket.gethostname()}: {words_of(error)}"

    def look(self) -> dict[str, Any]:
        """How the node fares, as plain data."""
        problem = self._problem
        if problem is None and (failure := self._process.failure()) is not None:
            problem = f"on {socket.gethostname()} {failure.removeprefix('node 0 ')}"
        running = problem is None and self._process.status().startswith("1 ")
        log = "".join(self._process.logs().values())[-_LOG_CHARACTERS:]
        return {"state": "running" if running else "ended", "problem": problem, "log": log}

    def end(self, limit_s: float) -> None:
        """End the node."""
        self._process.close(limit_s)


# The driver.


def drive(reports: int) -> None:
    """Do with Ray what is asked for on standard input, and tell on descriptor `reports` how it goes."""
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    job = NodeJob(tuple(order["job"]["arguments"]), order["job"]["keys"], order["job"]["python"])
    with open(reports, "w", encoding="utf-8") as file:
        driver = Driver(order["cluster"], job, commands, file)
        try:
            driver.run()
        except _Ended:
            pass
        except (Exception, SystemExit) as error:  # Ray raises SystemExit too
            driver.tell(problem=f"Ray cannot be used: {_said(error)}")
            while "end" not in commands.get():
                pass
        finally:
            driver.close()


class _Ended(Exception):
    """The head wants no more, or is gone."""


def _listen(commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    limit_s = 2.0
    with contextlib.suppress(ValueError):  # half a line, of a head that was killed
        for line in sys.stdin:
            command = json.loads(line)
            limit_s = command.get("end", limit_s)
            commands.put(command)
    commands.put({"end": limit_s})
    # Nothing that Ray does may keep this process from ending.
    time.sleep(limit_s + _END_S)
    os._exit(1)


class Driver:
    """What the driver knows: the actors, and what they answered last."""

    def __init__(
        self, cluster: dict[str, Any], job: NodeJob, commands: queue.SimpleQueue[dict[str, Any]], reports: IO[str]
    ) -> None:
        self._cluster, self._job, self._commands, self._reports = cluster, job, commands, reports
        self._ray: Any = None
        self._group: Any = None  # the placement group
        self._actors: list[Any] = []
        self._looks: dict[Any, tuple[int, int]] = {}  # questions under way: the node, and its restarts before them
        self._told: dict[int, dict[str, Any]] = {}
        self._deaths, self._restarts = [0] * cluster["nodes"], [0] * cluster["nodes"]
        self._limit_s = 2.0

    def run(self) -> None:
        """Connect, place, start, and look after the nodes until the head wants no more."""
        self._connect()
        if self._place():
            self._start()
        while True:
            self._obey(LOOK_S)
            if self._actors:
                self._look()

    def tell(self, phase: str = "", problem: str = "") -> None:
        """Tell the head how it goes, now that Ray has answered."""
        self._report({"phase": phase, "problem": problem})

    def _report(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the head is gone, which standard input tells
            self._reports.write(json.dumps(message) + "\n")
            self._reports.flush()

    def _connect(self) -> None:
        ray = self._ray = extras.load("ray", extra="ray", purpose="a Ray cluster")
        options = {"namespace": self._cluster["namespace"], "log_to_driver": False}
        address = self._cluster["address"] or os.environ.get("RAY_ADDRESS", "")
        if address != "local":
            try:
                ray.init(address=address or "auto", **options)
                return
            except ConnectionError:
                if address:
                    raise
        # Ray counts CPUs and holds nobody to them: on one host, for trying things, the count may be what is asked for.
        cpus = max(os.cpu_count() or 1, self._cluster["nodes"] * self._cluster["cpus"])
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **options)

    def _place(self) -> bool:
        """Have Ray set aside a place for every node."""
        nodes, cpus = self._cluster["nodes"], self._cluster["cpus"]
        made = plan(nodes, cpus, [host["Resources"].get("CPU", 0.0) for host in self._ray.nodes() if host["Alive"]])
        if not made.strategy:
            self.tell(problem=made.words)
            return False
        if made.words:
            self._report({"warning": made.words})
        bundles = [{"CPU": cpus} for _ in range(nodes)]
        self._group = self._ray.util.placement_group(bundles, strategy=made.strategy)
        self.tell(f"asking for {nodes} places with {cpus} CPU each")
        while not self._group.wait(LOOK_S):
            free = self._ray.available_resources().get("CPU", 0.0)
            self.tell(f"waiting for {nodes} places with {cpus} CPU each; {free:g} CPU are free in all of Ray")
            self._obey(0.0)
        return True

    def _start(self) -> None:
        """One actor in each place. Ray restarts it as often as it must, on another host if its own is lost."""
        strategies = extras.load("ray.util.scheduling_strategies", extra="ray", purpose="a Ray cluster")
        kind, run = self._ray.remote(NodeActor), secrets.token_hex(4)
        for index in range(self._cluster["nodes"]):
            place = strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            options = {"num_cpus": self._cluster["cpus"], "max_restarts": -1, "scheduling_strategy": place}
            job = OneJob(self._job.arguments, self._job.keys, self._job.python, index)
            self._actors.append(kind.options(name=f"node-{run}-{index}", **options).remote(job))
        self.tell("Ray starts the actors")

    def _obey(self, limit_s: float) -> None:
        """Carry out what the head wants."""
        with contextlib.suppress(queue.Empty):
            command = self._commands.get(timeout=limit_s) if limit_s else self._commands.get_nowait()
            if "end" in command:
                self._limit_s = command["end"]
                raise _Ended
            # An actor that Ray is about to restart starts its node by itself.
            node = command["restart"]
            self._restarts[node] += 1
            if self._actors and self._told.get(node, {}).get("state") != _RESTARTING:
                self._actors[node].restart.remote()

    def _look(self) -> None:
        """Ask every actor that owes no answer, and take the answers that are there."""
        asked = {index for index, _ in self._looks.values()}
        for index, actor in enumerate(self._actors):
            if index not in asked:
                self._looks[actor.look.remote()] = index, self._restarts[index]
        done, _ = self._ray.wait(list(self._looks), num_returns=len(self._looks), timeout=LOOK_S)
        for reference in done:
            index, restarts = self._looks.pop(reference)
            told = {**self._answer(index, reference), "restarts": restarts}
            if self._told.get(index) != told:
                self._told[index] = told
                self._report({"node": index, **told})

    def _answer(self, index: int, reference: Any) -> dict[str, Any]:
        """What an actor answered, or what Ray says about it."""
        try:
            told: dict[str, Any] = self._ray.get(reference, timeout=LOOK_S)
        except Exception as error:
            # What was asked of an actor fails with the actor, and Ray says that it died. Only if it says so again, to a
            # question asked after that, the actor is not coming back: to one that is, questions wait.
            self._deaths[index] += type(error).__name__ == "ActorDiedError"
            lost = self._deaths[index] > 1
            problem = f"is lost: {_said(error)}" if lost else None
            log = self._told.get(index, {}).get("log", "")
            return {"state": "lost" if lost else _RESTARTING, "problem": problem, "log": log}
        self._deaths[index] = 0
        return told

    def close(self) -> None:
        """End the nodes, then the actors, and leave Ray; one that was started here ends with that."""
        if self._ray is None or not self._ray.is_initialized():
            return
        if self._actors and all(self._told.get(each, {}).get("state") == "lost" for each in range(len(self._actors))):
            os._exit(1)  # Ray itself is gone as a rule, and would wait for itself
        with contextlib.suppress(Exception):
            ends = [actor.end.remote(self._limit_s) for actor in self._actors]
            if ends:
                self._ray.wait(ends, num_returns=len(ends), timeout=self._limit_s + 1.0)
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor, no_restart=True)
        if self._group is not None:
            with contextlib.suppress(Exception):
                self._ray.util.remove_placement_group(self._group)
        self._ray.shutdown()


def _order_of(cluster: Ray) -> dict[str, Any]:
    """What the driver must know."""
    address = cluster.address or _address_of_this_process()
    return {"nodes": cluster.nodes, "cpus": cpus_of(cluster), "namespace": cluster.namespace, "address": address}


def _address_of_this_process() -> str:
    """The Ray that the user's own program is connected to, if it uses Ray."""
    ray = sys.modules.get("ray")
    return str(ray.get_runtime_context().gcs_address) if ray is not None and ray.is_initialized() else ""


def _said(error: BaseException) -> str:
    """The words of Ray, without the fields that it adds in lines of their own, and the marks under a traceback."""
    lines = shown(words_of(error)).splitlines()
    words = [line for line in lines if line[:1] != "\t" and line.strip(" ^~")]
    return f"{type(error).__name__}: " + last_lines("\n".join(words), 6)[-1000:]
