"""Our own launchers and clusters keep the contracts that others are held to, and broken ones do not."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clusterenv import ClusterEnv, make_vec
from clusterenv.clusters import Remote, Tcp
from clusterenv.errors import LaunchError
from clusterenv.launchers.processes import ProcessLauncher
from clusterenv.testing import ClusterContract, ContractBroken, LauncherContract, broken_rules, processes
from clusterenv.testing.contracts import runs_here, standing_in
from tests.zoo import wait_until

if TYPE_CHECKING:
    from clusterenv.launchers.base import Launcher, NodeJob

LIMIT_S = 20.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Foreign(Remote):
    """A cluster that this library knows nothing of."""

    def launcher(self) -> Launcher:
        """What starts its nodes."""
        return ProcessLauncher(Tcp(nodes=self.nodes))


class TestProcesses(LauncherContract):
    limit_s = LIMIT_S

    def launcher(self, nodes: int) -> Launcher:
        return ProcessLauncher(Tcp(nodes=nodes))


class TestInproc(ClusterContract):
    cluster = "inproc:2"


class TestLocal(ClusterContract):
    cluster = "local:2"


class TestTcp(ClusterContract):
    cluster = "tcp:nodes=2,workers=1"


class TestForeign(ClusterContract):
    cluster = Foreign(nodes=2, workers=1, bind="127.0.0.1")


def test_a_cluster_of_nobody_is_refused() -> None:
    with pytest.raises(TypeError, match=r"has no launcher.*give it a method launcher\(\)"):
        make_vec("CartPole-v1", 2, cluster=Remote())


def test_what_is_to_be_written_is_told() -> None:
    with pytest.raises(NotImplementedError, match="return a launcher of yours"):
        LauncherContract().test_it_says_how_many_nodes_it_starts()
    with pytest.raises(ContractBroken, match="name the cluster"):
        ClusterContract().test_calls_reach_their_slots()


# Launchers that are wrong in one way each.


class Miscounts(ProcessLauncher):
    nodes = 3


class ShowsKeys(ProcessLauncher):
    def script(self, job: NodeJob) -> str:
        return super().script(job) + job.keys


class KeysAsWords(ProcessLauncher):
    """Passes the keys where everybody can see them."""

    def start(self, job: NodeJob) -> None:
        super().start(dataclasses.replace(job, arguments=(*job.arguments, "--import", job.keys)))


class ForgetsOne(ProcessLauncher):
    def start(self, job: NodeJob) -> None:
        super().start(job)
        process = self._nodes[1].process
        assert process is not None
        processes.kill(process.pid)


class Splits(ProcessLauncher):
    """Joins words with blanks, and lets a shell take them apart again."""

    def start(self, job: NodeJob) -> None:
        super().start(dataclasses.replace(job, arguments=tuple(" ".join(job.arguments[4:]).split()) or job.arguments))


class StartsTwice(ProcessLauncher):
    def start(self, job: NodeJob) -> None:
        if self._job is None:
            super().start(job)


class HidesFailures(ProcessLauncher):
    def failure(self) -> str | None:
        return None


class Mute(ProcessLauncher):
    def failure(self) -> str | None:
        return "something ended" if super().failure() else None

    def logs(self) -> dict[str, str]:
        return {}


class RestartsTheWrongOne(ProcessLauncher):
    def restart(self, node: int) -> bool:
        return super().restart(0 if node == 1 else node)


class SaysItRestarts(ProcessLauncher):
    def restart(self, node: int) -> bool:
        return super().restart(node) or True


class LeavesThemRunning(ProcessLauncher):
    def close(self, limit_s: float) -> None:
        for node in self._nodes:
            node.output.close()
        # Their standard input stays open.
        self.left = [*getattr(self, "left", []), *(node.process for node in self._nodes)]
        self._nodes = []


class ClosesOnce(ProcessLauncher):
    closed = False

    def close(self, limit_s: float) -> None:
        if self.closed:
            raise LaunchError("closed already")
        self.closed = True
        super().close(limit_s)


BROKEN: dict[type[ProcessLauncher], str] = {
    Miscounts: "it_says_how_many_nodes_it_starts",
    ShowsKeys: "the_script_shows_the_command_and_no_keys",
    KeysAsWords: "every_node_gets_the_keys_and_nobody_else_sees_them",
    ForgetsOne: "every_node_is_started_once_with_the_very_words",
    Splits: "every_node_is_started_once_with_the_very_words",
    StartsTwice: "a_launcher_starts_once",
    HidesFailures: "a_node_that_fails_is_told_with_its_last_words",
    Mute: "what_nodes_write_can_be_read",
    RestartsTheWrongOne: "a_lost_node_comes_back_or_that_is_denied",
    SaysItRestarts: "a_node_that_there_is_not_does_not_come_back",
    LeavesThemRunning: "close_ends_every_node_and_may_be_repeated",
    ClosesOnce: "close_ends_every_node_and_may_be_repeated",
}


@pytest.mark.filterwarnings("ignore:subprocess")
@pytest.mark.parametrize(("kind", "rule"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_launcher_breaks_its_rule(kind: type[ProcessLauncher], rule: str) -> None:
    made: list[ProcessLauncher] = []

    class Contract(LauncherContract):
        limit_s = 2.0

        def launcher(self, nodes: int) -> Launcher:
            made.append(kind(Tcp(nodes=nodes)))
            return made[-1]

    with pytest.raises((ContractBroken, LaunchError)):
        getattr(Contract(), f"test_{rule}")()
    for launcher in made:
        for process in getattr(launcher, "left", []):
            process.kill()
            process.wait()
            process.stdin.close()
        ProcessLauncher.close(launcher, 1.0)


# Clusters that are wrong in one way each.


class Tampered:
    """A batch that lies."""

    def __init__(self, envs: ClusterEnv, how: str) -> None:
        self._envs, self._how, self._steps = envs, how, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envs, name)

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = self._envs.step(actions)
        self._steps += 1
        if self._how == "swaps two slots":
            observations = observations[[1, 0, 2, 3]]
        if self._how == "steps twice" and self._steps == 5:
            return self._envs.step(actions)
        if self._how == "hides losses":
            truncated, infos = np.zeros_like(truncated), {}
        return observations, rewards, terminated, truncated, infos

    def set_attr(self, name: str, values: Any) -> None:
        self._envs.set_attr(name, values[::-1] if self._how == "mixes up calls" else values)

    def publish(self, policy: Any) -> Any:
        return None if self._how == "keeps old weights" else self._envs.publish(policy)

    def close(self) -> None:
        if self._how != "stays open":
            self._envs.close()


LIES = {
    "swaps two slots": "the_answers_are_those_of_one_process",
    "steps twice": "every_transition_is_there_once_and_in_its_slot",
    "mixes up calls": "calls_reach_their_slots",
    "keeps old weights": "a_policy_acts_where_the_environments_are",
    "hides losses": "a_killed_worker_costs_its_own_slots",
    "stays open": "close_leaves_nothing_and_may_be_repeated",
}


@pytest.mark.parametrize(("how", "rule"), LIES.items(), ids=LIES.keys())
def test_a_broken_cluster_breaks_its_rule(how: str, rule: str) -> None:
    opened: list[ClusterEnv] = []

    class Contract(ClusterContract):
        limit_s = 2.0

        def make(self, env_id: str, num_envs: int, **kwargs: Any) -> Any:
            opened.append(make_vec(env_id, num_envs, cluster="local:2", **kwargs))
            return Tampered(opened[-1], how)

    with pytest.raises(ContractBroken):
        getattr(Contract(), f"test_{rule}")()
    while opened:
        opened.pop().close(terminate=True)


def test_all_rules_that_are_broken_are_told() -> None:
    class Contract(LauncherContract):
        limit_s = 5.0

        def launcher(self, nodes: int) -> Launcher:
            return Miscounts(Tcp(nodes=2))

        test_every_node_is_started_once_with_the_very_words = None  # type: ignore[assignment]

    found = broken_rules(Contract())
    assert found["it_says_how_many_nodes_it_starts"] == "ContractBroken: nodes is 3 of a launcher for 2"
    assert "TypeError" in found["every_node_is_started_once_with_the_very_words"]


def test_a_stand_in_that_has_ended_does_not_run() -> None:
    with standing_in(None) as node:
        process = subprocess.Popen([*node.job("leave").command("-", 0)], stdin=subprocess.DEVNULL)
        wait_until(lambda: not runs_here(process.pid), LIMIT_S)
        assert process.wait() == 0
        (record,) = node.records()
        assert record["index"] == 0
    assert runs_here(os.getpid())
