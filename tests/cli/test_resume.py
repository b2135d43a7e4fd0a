"""A training run is killed, and goes on from its last checkpoint with the node that has waited for it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from clusterenv.cli.exits import OK
from clusterenv.learners.common.checkpoint import Checkpoints
from tests.cli.kit import PROGRAM
from tests.zoo import quiet_port, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

LIMIT_S = 60.0
SMALL = [
    *("--num-envs", "2", "--rollout-steps", "8", "--epochs", "1", "--minibatches", "1", "--json"),
    *("--checkpoint-every-s", "0.001", "--runs", "runs"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to a folder of the test."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [*PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.callback(process.communicate, timeout=LIMIT_S)
            stack.callback(process.kill)
            return process

        yield start


def steps_of(run: subprocess.Popen[str], least: int) -> int:
    """Read what a run tells until it has taken so many steps."""
    assert run.stdout is not None
    steps = 0
    while steps < least:
        line = run.stdout.readline()
        assert line, run.communicate(timeout=LIMIT_S)
        steps = json.loads(line).get("global_step", 0)
    return steps


@pytest.mark.fault("F17")
def test_a_killed_run_goes_on_with_the_node_that_has_waited(
    start: Callable[..., subprocess.Popen[str]], tmp_path: pathlib.Path
) -> None:
    port = quiet_port()  # nobody else gets it between the two runs
    token = tmp_path / "token"
    files = f"token_file={token},key_file={tmp_path / 'keys'}"
    cluster = f"join:workers=1,bind=127.0.0.1:{port},silence_s=5,{files}"
    first = start("train", "ppo", *SMALL, "--cluster", cluster, "--total-steps", "100000000")
    wait_until(token.exists, LIMIT_S)
    node = start("join", f"cluster://127.0.0.1:{port}", "--token-file", str(token), "--keep-trying", "120")
    steps_of(first, 160)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=LIMIT_S)
    saved = Checkpoints("runs/latest/checkpoints").load()
    assert saved is not None
    done, epoch = saved.facts["global_step"], saved.facts["epoch"]
    assert done >= 144, "the last step but one that was told is in it"
    assert epoch == 0

    second = start("train", "ppo", "--resume", "runs/latest", "--total-steps", str(done + 160), "--json")
    assert steps_of(second, done + 16) == done + 16
    out, err = second.communicate(timeout=LIMIT_S)
    assert second.returncode == OK, err
    assert json.loads(out.splitlines()[-1])["summary"]["steps"] == done + 160
    assert node.wait(LIMIT_S) == OK
    newest = Checkpoints("runs/latest/checkpoints").load()
    assert newest is not None
    assert newest.facts["epoch"] == 1
