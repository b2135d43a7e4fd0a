"""Every example runs for a few steps, as a person would start it, and says at the end what it should."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples"

# The options that make an example short, and what its last line looks like.
RUNS = {
    "ppo_cartpole.py": (
        "--num-envs 4 --rollout-steps 64 --total-steps 512 --window 5 --target-return 5 --minibatches 1",
        r"Solved: average return \d+\.\d over the last 5 episodes, after (256|512) steps and .* \(seed 1\)\.",
    ),
    "cleanrl_ppo.py": (
        "--num-envs 4 --num-steps 64 --total-timesteps 512 --num-minibatches 1",
        r"mean return of the last [1-9]\d* episodes: \d+\.\d, after 512 steps and .* s",
    ),
    "paper_api.py": (
        "--env-id CartPole-v1 --envs-per-node 2 --rollout-steps 32 --total-steps 512",
        r"[1-5] syncs \(first 1.*\), \d+ bytes; every version in full would be \d+ bytes",
    ),
    "sb3_ppo.py": (
        "--num-envs 4 --total-steps 128 --evaluation-steps 40",
        r"mean return of [1-9]\d* evaluation episodes: \d+\.\d",
    ),
}


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize("name", sorted(RUNS))
def test_an_example_runs(name: str, tmp_path: pathlib.Path) -> None:
    options, last_line = RUNS[name]
    result = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", EXAMPLES / name, *options.split()],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(last_line, result.stdout.splitlines()[-1]), result.stdout


@pytest.mark.parametrize("name", sorted(RUNS))
def test_the_table_of_examples_names_it(name: str) -> None:
    assert f"({name})" in (EXAMPLES / "README.md").read_text()
