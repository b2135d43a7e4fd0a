"""Nodes that are started by hand: the token, the line to type, and a real node that joins with them."""

from __future__ import annotations

import dataclasses
import logging
import os
import shlex
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import clusterenv
from clusterenv import LaunchError
from clusterenv.clusters import Join
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.join import JoinLauncher
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

JOB = NodeJob(("--head", "tcp+curve://10.0.0.1:5555,tcp+curve://10.1.0.1:5555", "--import", "ale_py"), "secret", "py")
LIMIT_S = 60.0


def test_the_line_to_type_names_head_token_and_modules(tmp_path: pathlib.Path) -> None:
    words = shlex.split(JoinLauncher(Join(nodes=1, token_file=str(tmp_path / "a token"))).script(JOB))
    assert words == [
        *("clusterenv", "join", "cluster://10.0.0.1:5555", "--token-file", str(tmp_path / "a token")),
        *("--import", "ale_py"),
    ]


@pytest.mark.threat("T14")
def test_only_its_owner_can_read_the_token_and_it_is_gone_at_the_end(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "deep" / "token"
    launcher = JoinLauncher(Join(nodes=2, token_file=str(token)))
    before = os.umask(0)
    try:
        with caplog.at_level(logging.WARNING):
            launcher.start(JOB)
        assert token.stat().st_mode & 0o777 == 0o600
        assert token.read_text() == "secret\n"
        assert "waiting for 2 nodes" in caplog.text
        assert "secret" not in caplog.text
    finally:
        os.umask(before)
        launcher.close(1.0)
    assert not token.exists()


def test_who_is_stopped_while_the_token_is_written_leaves_none(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(path: pathlib.Path, text: str) -> None:
        path.write_text(text)
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterenv.launchers.join.write_private", stopped)
    launcher = JoinLauncher(Join(nodes=2, token_file=str(tmp_path / "token")))
    with pytest.raises(KeyboardInterrupt):
        launcher.start(JOB)
    launcher.close(1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_never_overwritten(tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    token.write_text("mine")
    launcher = JoinLauncher(Join(nodes=1, token_file=str(token)))
    with pytest.raises(LaunchError, match="cannot be made"):
        launcher.start(JOB)
    launcher.close(1.0)
    assert token.read_text() == "mine"


def test_nodes_of_a_run_that_outlives_its_head_are_told_to_wait() -> None:
    words = shlex.split(JoinLauncher(Join(bind="10.0.0.1:5555", key_file="keys", token_file="t")).script(JOB))
    assert words[words.index("--token-file") :] == ["--token-file", "t", "--keep-trying", "600", "--import", "ale_py"]


def test_the_token_of_a_killed_head_of_the_same_run_is_taken(tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    cluster = Join(bind="10.0.0.1:5555", key_file="keys", token_file=str(token))
    JoinLauncher(cluster).start(JOB)
    second = JoinLauncher(cluster)
    second.start(JOB)
    with pytest.raises(LaunchError, match="cannot be made"):
        JoinLauncher(cluster).start(dataclasses.replace(JOB, keys="of another run"))
    with pytest.raises(LaunchError, match="cannot be made"):
        JoinLauncher(Join(token_file=str(token))).start(JOB)
    second.close(1.0)
    assert not token.exists()


@pytest.mark.parametrize("by", ["file", "variable"])
def test_a_machine_joins_by_hand(by: str, tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    cluster = Join(nodes=1, bind="127.0.0.1", token_file=str(token), workers=1)
    line: list[str] = []
    joined = _in_thread(lambda: _join(token, line, by))
    with _announced(line), clusterenv.make_vec("CartPole-v1", num_envs=2, cluster=cluster) as envs:
        first, _ = envs.reset(seed=1)
    joined()
    with clusterenv.make_vec("CartPole-v1", num_envs=2, cluster="inproc") as envs:
        np.testing.assert_array_equal(first, envs.reset(seed=1)[0])


class _announced:
    """Takes the line to type from the log, as a person would from the screen."""

    def __init__(self, line: list[str]) -> None:
        self._line = line

    def __enter__(self) -> None:
        self._handler = logging.Handler()
        self._handler.emit = lambda record: self._line.append(record.getMessage().splitlines()[-1])  # type: ignore[method-assign]
        logging.getLogger("clusterenv.launchers.join").addHandler(self._handler)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("clusterenv.launchers.join").removeHandler(self._handler)


def _join(token: pathlib.Path, line: list[str], by: str) -> None:
    wait_until(lambda: bool(line), LIMIT_S)
    words = shlex.split(line[0])
    environment = dict(os.environ)
    if by == "variable":
        at = words.index("--token-file")
        del words[at : at + 2]
        environment["CLUSTERENV_TOKEN"] = token.read_text()
    subprocess.run([sys.executable, "-m", *words], check=True, timeout=LIMIT_S, env=environment, capture_output=True)


def _in_thread(act: Callable[[], None]) -> Callable[[], None]:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def finish() -> None:
        thread.join(LIMIT_S)
        assert not failed, failed

    return finish
