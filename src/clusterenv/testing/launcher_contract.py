"""The contract of launchers: inherit it in your own tests, and your launcher is held to what the head relies on."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from typing import TYPE_CHECKING, Any

from clusterenv.errors import LaunchError
from clusterenv.testing.contracts import CANARY, KEYS, require, runs_here, standing_in, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterenv.launchers.base import Launcher, NodeJob
    from clusterenv.testing.contracts import StandIn

# Words that a careless shell would read differently.
_ODD = ("--import", "two words", "--import", "$(echo no)", "--import", 'it\'s "quoted" \\ ;#')


class LauncherContract:
    """What every `Launcher` must keep. Each `test_` method is a test of pytest's, and needs nothing of pytest's.

    A program stands in for the node: it records how it was started, and waits until its standard input ends, or until
    it is killed. Its folder and its interpreter must be there on the hosts, as on a disk that all of them share.

    Attributes:
        limit_s: how long the engine may take for anything.
        folder: where the program is put; None for the usual folder of temporary files.

    Example:
        >>> from clusterenv import Tcp
        >>> from clusterenv.launchers.processes import ProcessLauncher
        >>> class TestMine(LauncherContract):
        ...     def launcher(self, nodes):
        ...         return ProcessLauncher(Tcp(nodes=nodes))
        >>> TestMine().test_the_script_shows_the_command_and_no_keys()
    """

    limit_s: float = 60.0
    folder: str | None = None

    def launcher(self, nodes: int) -> Launcher:
        """A launcher for so many nodes, with nothing started yet. Yours to write."""
        raise NotImplementedError("launcher(nodes) of this contract is to be written: return a launcher of yours.")

    def runs(self, pid: int) -> bool:
        """Whether a process runs. Yours to write if nodes run on other hosts."""
        return runs_here(pid)

    # What it tells.

    def test_it_says_how_many_nodes_it_starts(self) -> None:
        """`nodes` is known before anything is started."""
        require(self.launcher(2).nodes == 2, f"nodes is {self.launcher(2).nodes} of a launcher for 2")

    def test_the_script_shows_the_command_and_no_keys(self) -> None:
        """`script` is for people who look before they leap: nothing secret in it, and nothing is started."""
        with standing_in(self.folder) as node:
            script = self.launcher(2).script(node.job())
            require("--record" in script, f"the script does not show the command of a node: {script!r}")
            require(CANARY not in script, "the script shows the keys")
            require(not node.records(), "the script has started something")

    def test_before_the_start_there_is_nothing_to_tell(self) -> None:
        """Nobody has failed, and closing what was never started is no error."""
        launcher = self.launcher(2)
        require(launcher.failure() is None, f"before the start failure() is {launcher.failure()!r}")
        require(isinstance(launcher.status(), str), f"status() is {launcher.status()!r}, and no text")
        launcher.close(self.limit_s)

    # Starting.

    def test_every_node_is_started_once_with_the_very_words(self) -> None:
        """No shell on the way may change a word."""
        with self._started("wait", *_ODD) as (launcher, node):
            records = node.wait_for(2, self.limit_s)
            wait_for(lambda: launcher.failure() is None, self.limit_s, "failure() should be None while all is well")
            for record in records:
                words = _words_of(record)
                require(words[-len(_ODD) :] == list(_ODD), f"the words came as {words}")
            indices = [record["index"] for record in records]
            require(set(indices) in ({0, 1}, {None}), f"the nodes were numbered {indices}, in place of 0 and 1")
            require(len(node.records()) == 2, f"{len(node.records())} nodes were started, in place of 2")

    def test_every_node_gets_the_keys_and_nobody_else_sees_them(self) -> None:
        """Neither the command line nor the environment of a process is private."""
        with self._started() as (_, node):
            for record in node.wait_for(2, self.limit_s):
                require(record["keys"].strip() == KEYS, f"a node got the keys {record['keys']!r}")
                require(not any(CANARY in word for word in record["argv"]), "the keys are on the command line")
                for name in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):  # of another host
                        seen = pathlib.Path(f"/proc/{record['pid']}/{name}").read_bytes()
                        require(CANARY.encode() not in seen, f"the keys are in the {name} of a node")

    def test_a_launcher_starts_once(self) -> None:
        """Starting twice is refused: the head would not know whose nodes are whose."""
        with self._started() as (launcher, node):
            node.wait_for(2, self.limit_s)
            try:
                launcher.start(node.job())
            except LaunchError:
                return
            require(False, "start() was called twice, and no LaunchError was raised")

    # Failing.

    def test_a_node_that_fails_is_told_with_its_last_words(self) -> None:
        """Who waits for a node must learn that it will not come, and why."""
        with self._started("fail") as (launcher, node):
            node.wait_for(1, self.limit_s)
            wait_for(launcher.failure, self.limit_s, "failure() should tell of nodes that ended with exit code 1")
            told = f"{launcher.failure()} {launcher.logs()}"
            require("no module named clusterenv" in told, f"the last words of a node are not told: {told}")

    def test_an_interpreter_that_is_not_there_is_told(self) -> None:
        """At once, as a LaunchError, or once the engine has noticed."""
        with standing_in(self.folder) as node:
            launcher = self.launcher(2)
            job = node.job()
            try:
                launcher.start(type(job)(job.arguments, job.keys, f"{node.program}-is-not-here"))
                wait_for(launcher.failure, self.limit_s, "failure() should tell of an interpreter that is not there")
            except LaunchError:
                return
            finally:
                launcher.close(self.limit_s)

    def test_what_nodes_write_can_be_read(self) -> None:
        """`logs` has the last lines of each node."""
        with self._started("say") as (launcher, node):
            node.wait_for(2, self.limit_s)
            wait_for(
                lambda: " ".join(launcher.logs().values()).count("is ready") >= 2,
                self.limit_s,
                "logs() should have what the nodes wrote",
            )

    # Coming back.

    def test_a_lost_node_comes_back_or_that_is_denied(self) -> None:
        """`restart` tells whether it starts the node again; if it says so, a node with the same number comes."""
        with self._started() as (launcher, node):
            first = node.wait_for(2, self.limit_s)
            old = {record["index"]: record["pid"] for record in first}
            if not launcher.restart(1):
                return
            again = node.wait_for(3, self.limit_s)[2]
            require(again["index"] == 1, f"restart(1) has started node {again['index']}")
            wait_for(lambda: not self.runs(old[1]), self.limit_s, "the node before should be gone: two have one number")
            require(self.runs(old[0]), "restart(1) has ended node 0")
            require(again["keys"].strip() == KEYS, "a node that was started again has no keys")

    def test_a_node_that_there_is_not_does_not_come_back(self) -> None:
        """Numbers beyond the nodes, and any number after `close`."""
        with self._started() as (launcher, node):
            node.wait_for(2, self.limit_s)
            require(not launcher.restart(2), "restart(2) says True, of a launcher with the nodes 0 and 1")
            launcher.close(self.limit_s)
            require(not launcher.restart(0), "restart(0) says True after close()")

    # Ending.

    def test_close_ends_every_node_and_may_be_repeated(self) -> None:
        """Also those that do not end by themselves, with what they have started."""
        for do in ("wait", "stubborn", "child"):
            with self._started(do) as (launcher, node):
                records = node.wait_for(2, self.limit_s)
                launcher.close(1.0)
                launcher.close(1.0)
                pids = [pid for record in records for pid in (record["pid"], record["child"]) if pid]
                wait_for(
                    lambda pids=pids: not any(map(self.runs, pids)),  # type: ignore[misc]
                    self.limit_s,
                    f"close() should end nodes that {do}",
                )

    @contextlib.contextmanager
    def _started(self, do: str = "wait", *more: str) -> Iterator[tuple[Launcher, StandIn]]:
        """Two nodes that do as they are told."""
        with standing_in(self.folder) as node:
            launcher, job = self.launcher(2), _with(node.job(do), more)
            launcher.start(job)
            try:
                yield launcher, node
            finally:
                launcher.close(self.limit_s)
                self._bury(node)

    def _bury(self, node: StandIn) -> None:
        """Nobody may be left; who is, on this host, is ended by us, so that a broken launcher leaves no trace."""
        pids = [record["pid"] for record in node.records()]
        try:
            wait_for(lambda: not any(map(self.runs, pids)), self.limit_s, "close() should end every node")
        finally:
            for pid in filter(runs_here, pids):
                os.killpg(os.getpgid(pid), signal.SIGKILL)


def _with(job: NodeJob, more: tuple[str, ...]) -> NodeJob:
    return type(job)((*job.arguments, *more), job.keys, job.python)


def _words_of(record: dict[str, Any]) -> list[str]:
    """The arguments that the job had, without those that the launcher adds behind them."""
    words = list(record["argv"])
    for added in ("--index", "--key-file"):
        if added in words:
            at = words.index(added)
            del words[at : at + 2]
    return words
