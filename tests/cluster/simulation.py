"""A cluster in one thread, on a clock of its own: the pure cores with hundreds of nodes and a network that fails.

A head asks slots of nodes to step, as `send` does, and publishes versions. Messages are late, lost, doubled;
connections break; nodes crash, pause and come back as what they were before; the head restarts. Everything follows from
the seed.
What the user would see is checked as it is handed over: see `Witness`.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterenv.cluster.gather import Gather
from clusterenv.cluster.requests import Answering, Asking, Turn
from clusterenv.cluster.restart import CrashLoops
from clusterenv.sync.aps import APS
from clusterenv.sync.rules import Situation
from clusterenv.sync.versions import Version

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv.sync.rules import Decider

SLOTS = 3  # of a node
SILENCE_S, AGAIN_S, BEAT_S = 10.0, 5.0, 2.0


class Wrong(AssertionError):
    """The cluster has shown the user something that cannot be."""


class Row(NamedTuple):
    """What a node tells of a step: where it was made, by which life of the node, and how often it had been before."""

    slot: int
    life: int
    step: int
    version: Version


class Witness:
    """Holds what the user has seen of every slot against the promises."""

    def __init__(self) -> None:
        self._last: dict[int, Row | None] = {}
        self.rows = self.losses = 0

    def see(self, slot: int, row: Row | None) -> None:
        """A slot was handed over with this row, or as lost."""
        before = self._last.get(slot)
        self._last[slot] = row
        if row is None:
            self.losses += 1
            return
        self.rows += 1
        if row.slot != slot:
            raise Wrong(f"slot {slot} was shown what happened in slot {row.slot}")
        if before is None:
            if row.step != 1:
                raise Wrong(f"slot {slot} begins with step {row.step}: steps were made that nobody saw")
        elif row.life != before.life:
            raise Wrong(f"slot {slot} goes on in another life, and no loss was shown")
        elif row.step != before.step + 1:
            raise Wrong(f"slot {slot} went from step {before.step} to {row.step}")
        elif row.version < before.version:
            raise Wrong(f"slot {slot} went from version {before.version} back to {row.version}")


@dataclass
class Request:
    """What a node is asked for: to step slots, or to take a version."""

    number: int
    settled: int
    arrived: tuple[int, ...]
    slots: dict[int, int] = field(default_factory=dict)  # with the request number of each
    version: Version | None = None


class Node:
    """One life of a node: it steps its slots, and carries out every request once."""

    def __init__(self, sim: Simulation, index: int, life: int, epoch: int, answering: Any) -> None:
        self.sim, self.index, self.life, self.epoch = sim, index, life, epoch
        self.answering: Answering[tuple[int, Any]] = answering()
        self.steps: collections.Counter[int] = collections.Counter()
        self.version = Version(0, 0)
        self.paused_until = 0.0
        self.dead = False

    def take(self, request: Request) -> None:
        """A request has arrived."""
        if self.dead:
            return
        if self.sim.now < self.paused_until:
            self.sim.at(self.paused_until, lambda: self.take(request))
            return
        turn = self.answering.arrived(request.number, request.settled, request.arrived)
        if turn is Turn.NEW:
            self.answering.done(request.number, (request.number, self._carry_out(request)))
        if turn is not Turn.BUSY:
            self.sim.to_head(self, self.answering.answer(request.number))

    def _carry_out(self, request: Request) -> list[tuple[Row, int]]:
        if request.version is not None:
            self.version = request.version
        rows = []
        for slot, wanted in request.slots.items():
            self.steps[slot] += 1
            rows.append((Row(slot, self.life, self.steps[slot], self.version), wanted))
        return rows

    def send_again(self) -> None:
        """The connection was renewed."""
        for answer in [] if self.dead else self.answering.kept():
            self.sim.to_head(self, answer)


class Place:
    """The head's view of one node."""

    def __init__(self, node: Node, decider: Decider) -> None:
        self.node, self.decider = node, decider
        self.asking: Asking[Request] = Asking()
        self.heard_s = node.sim.now
        self.held: Version | None = None
        self.giving = False


class Simulation:
    """A head and its nodes.

    Args:
        seed: of everything.
        nodes: how many.
        answering: how a node remembers what it has carried out; a test plants a bug here.
        fenced: whether messages of an earlier life are refused.
        marked: whether the user is told of losses, or another life goes on as if nothing had happened.
    """

    def __init__(
        self, seed: int, nodes: int, *, answering: Any = Answering, fenced: bool = True, marked: bool = True
    ) -> None:
        self.random, self.now, self.epoch = random.Random(seed), 0.0, 0
        self._answering, self._fenced, self._marked = answering, fenced, marked
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._lives = itertools.count(), itertools.count(1)
        self.calm = False
        self.witness = Witness()
        self.faults: collections.Counter[str] = collections.Counter()
        count = nodes * SLOTS
        self._want, self._have = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
        self._blocks = [range(node * SLOTS, (node + 1) * SLOTS) for node in range(nodes)]
        self._lines: dict[int, float] = {}  # of each life and direction: when its last message arrives
        self._begin(nodes)

    def _begin(self, nodes: int) -> None:
        """A head starts, for the first time or again: another epoch, and nothing is known of what was."""
        self.epoch += 1
        self.newest = Version(self.epoch, 1)
        self._want[:] = self._have[:] = 0
        self.gather = Gather(self._blocks, self._want, self._have)
        self.loops = CrashLoops()
        self._rows: dict[int, Row | None] = {}
        self.places = [self._place(index) for index in range(nodes)]

    def _place(self, index: int) -> Place:
        node = Node(self, index, next(self._lives), self.epoch, self._answering)
        return Place(node, APS(threshold=0.05, max_lag=20).start(1))

    # Time.

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Have something done later."""
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self, seconds: float) -> None:
        """Let this much time pass, with faults; then a calm, in which everything must come to its end."""
        end, next_look = self.now + seconds, self.now
        while self.now < end:
            self._turn()
            if self.now >= next_look:
                next_look = self.now + BEAT_S
                self._look_after_nodes()
                self._strike()
        self.calm = True
        end = self.now + 20 * SILENCE_S
        while self.gather.in_flight and self.now < end:
            self._pass_time(0.5)
            self._look_after_nodes()
            self._hand_over()
        if self.gather.in_flight:
            raise Wrong(f"{self.gather.in_flight} slots were asked for and never answered")

    def _turn(self) -> None:
        """What a learner does: ask for some slots, publish, and take what is ready."""
        idle = np.flatnonzero(self._want == self._have)
        idle = idle[~np.isin(idle, list(self._rows))]
        if len(idle):
            chosen = self.random.sample(idle.tolist(), max(1, len(idle) // 4))
            self._ask(np.array(sorted(chosen), dtype=np.intp))
        if self.random.random() < 0.3:
            self.newest = self.newest.next()
            self._consider()
        self._pass_time(0.05)
        self._hand_over()

    def _pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            when, _, what = heapq.heappop(self._events)
            self.now = max(self.now, when)
            what()
        self.now = end

    # The head.

    def _ask(self, slots: Any) -> None:
        workers, lost = self.gather.ask(slots, self.now)
        for slot in lost.tolist():
            self._rows[slot] = None
        asked = set(slots.tolist()) - set(lost.tolist())
        for worker in workers:
            mine = {slot: int(self._want[slot]) for slot in self._blocks[worker] if slot in asked}
            self._send(self.places[worker], slots=mine)

    def _send(self, place: Place, **fields: Any) -> None:
        number = place.asking.next()
        settled = min(place.asking.settled, number - 1)
        request = Request(number, settled, tuple(place.asking.arrived()), **fields)
        place.asking.note(number, request, self.now)
        self._to_node(place.node, request)

    def _consider(self) -> None:
        for place in self.places:
            if place.giving:
                continue
            divergence = np.array([0.0 if self.calm else self.random.random() * 0.1])
            situation = Situation(held=place.held, newest=self.newest, divergence=divergence, now_s=self.now)
            reason = place.decider.consider(situation)
            if reason is not None:
                place.giving, place.held = True, self.newest
                self._send(place, version=self.newest)
                place.decider.synced(self.newest, reason, now_s=self.now, nbytes=1)

    def _answered(self, node: Node, answer: tuple[int, list[tuple[Row, int]]]) -> None:
        place = self.places[node.index]
        if self._fenced and place.node is not node:
            self.faults["an old life was refused"] += 1
            return
        place.heard_s = self.now
        number, rows = answer
        if not place.asking.answered(number) and self._fenced:
            return
        if not rows:
            place.giving = False
        for row, wanted in rows:
            if self._want[row.slot] == wanted or not self._fenced:
                self._have[row.slot] = self._want[row.slot]
                self._rows[row.slot] = row

    def _hand_over(self) -> None:
        ready = self.gather.ready()
        for slot in ready.tolist():
            self.witness.see(slot, self._rows.pop(slot))
        self.gather.hand_over(ready)

    def _look_after_nodes(self) -> None:
        for index, place in enumerate(self.places):
            if self.now - place.heard_s > SILENCE_S:
                self._lose(index)
            else:
                for request in place.asking.overdue(self.now, AGAIN_S):
                    self._to_node(place.node, request)
            self._to_node(self.places[index].node, None)

    def _lose(self, index: int) -> None:
        self.faults["lost"] += 1
        block = self._blocks[index]
        if not self._marked:
            self.places[index] = self._place(index)
            waiting = [slot for slot in block if self._want[slot] != self._have[slot]]
            self._send(self.places[index], slots={slot: int(self._want[slot]) for slot in waiting})
            return
        lost = self.gather.lose(block, reported=True)
        self.loops.tolerates(f"node {index}", self.gather.steps_ever(block.start))
        for slot in lost:
            self._rows[slot] = None
        self.places[index] = self._place(index)

    # The network: late, and now and then without or with one message too many. In order, as TCP is.

    def _to_node(self, node: Node, request: Request | None) -> None:
        def arrive() -> None:
            if request is not None:
                node.take(request)
            elif not node.dead and self.now >= node.paused_until:
                self.to_head(node, None)  # a beat

        self._carry(2 * node.life, arrive)

    def to_head(self, node: Node, answer: tuple[int, Any] | None) -> None:
        """A node sends an answer, or a beat."""

        def arrive() -> None:
            if node.epoch != self.epoch:
                node.dead = True  # the head of today refuses it, and it ends
            elif answer is not None:
                self._answered(node, answer)
            elif self.places[node.index].node is node:
                self.places[node.index].heard_s = self.now

        self._carry(2 * node.life + 1, arrive)

    def _carry(self, line: int, arrive: Callable[[], None]) -> None:
        copies = 1
        if not self.calm and self.random.random() < 0.02:
            copies = self.random.choice((0, 2))
            self.faults["message lost" if copies == 0 else "message doubled"] += 1
        for _ in range(copies):
            due = max(self.now + self.random.expovariate(200.0), self._lines.get(line, 0.0))
            self._lines[line] = due
            self.at(due, arrive)

    # Faults.

    def _strike(self) -> None:
        for place in self.places:
            dice = self.random.random()
            if dice < 0.01:
                self.faults["crash"] += 1
                place.node.dead = True
            elif dice < 0.02:
                self.faults["pause"] += 1
                place.node.paused_until = self.now + self.random.uniform(1.0, 3 * SILENCE_S)
            elif dice < 0.04:
                self.faults["connection renewed"] += 1
                for request in place.asking.everything(self.now):
                    self._to_node(place.node, request)
                place.node.send_again()
        if self.random.random() < 0.02:
            self.faults["head restart"] += 1
            for slot in range(len(self._want)):
                self.witness.see(slot, None)  # the user begins anew
            self._begin(len(self.places))
