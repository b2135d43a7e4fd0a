"""Disks that are full, or cannot be written to: real ones, in a mount namespace of the test's own."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.cli.kit import SMALL

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 250.0

FILL = """
import pathlib, torch
from clusterenv.learners.common.checkpoint import Checkpoints
checkpoints = Checkpoints(pathlib.Path("checkpoints"))
checkpoints.save(1, {"w": torch.ones(1000)}, {"global_step": 1})
try:
    checkpoints.save(2, {"w": torch.ones(1_000_000)}, {"global_step": 2})
except OSError as error:
    print(error.strerror)
checkpoints.save(3, {"w": torch.ones(1000)}, {"global_step": 3})  # there is room for this one again
print([path.name for path in sorted(pathlib.Path("checkpoints").iterdir())])
print(checkpoints.load().facts["global_step"])
"""


def on_disk(options: str, folder: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder that is a small disk, which nobody else sees."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can mount a disk, with the program unshare")
    script = 'mount -t tmpfs -o "$0" none "$1" && cd "$1" && shift && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, options, str(folder), sys.executable, *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env, check=False)


@pytest.mark.fault("F39")
def test_a_checkpoint_that_does_not_fit_leaves_the_one_before(tmp_path: pathlib.Path) -> None:
    done = on_disk("size=1m", tmp_path, "-c", FILL)
    assert done.stdout.splitlines() == [
        "No space left on device",
        "['000000000001.safetensors', '000000000003.safetensors']",
        "3",
    ], done.stderr


@pytest.mark.fault("F39")
def test_a_run_on_a_full_disk_ends_with_one_message(tmp_path: pathlib.Path) -> None:
    done = on_disk("size=16k", tmp_path, "-m", "clusterenv", "train", "ppo", *SMALL, "--quiet")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "\nMake room for runs/CartPole-v1__ppo__1__" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.fault("F40")
def test_a_run_that_cannot_write_its_folder_does_not_begin(tmp_path: pathlib.Path) -> None:
    done = on_disk("ro", tmp_path, "-m", "clusterenv", "train", "ppo", *SMALL)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "ConfigError: --runs 'runs': no folder can be made there: Read-only file system. Name a folder of yours.\n"
    )
