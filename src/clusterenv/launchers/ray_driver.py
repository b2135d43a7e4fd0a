"""The driver of a Ray cluster: a process of its own that does with Ray what the launcher asks for.

It takes commands as lines of JSON on standard input, and tells on another descriptor how it goes. `launchers/ray.py`
says why Ray is not used in the head itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterenv import extras
from clusterenv.errors import words_of
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.ray_actor import NodeActor, OneJob
from clusterenv.launchers.tail import last_lines, shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

# How often the driver asks each actor how its node fares.
LOOK_S = 0.5
# Time beyond the limit of a caller: a node that is not ended properly may go on to take CPUs of others.
END_S = 8.0
_RESTARTING = "Ray restarts its actor"


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
    time.sleep(limit_s + END_S)
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


def _said(error: BaseException) -> str:
    """The words of Ray, without the fields that it adds in lines of their own, and the marks under a traceback."""
    lines = shown(words_of(error)).splitlines()
    words = [line for line in lines if line[:1] != "\t" and line.strip(" ^~")]
    return f"{type(error).__name__}: " + last_lines("\n".join(words), 6)[-1000:]
