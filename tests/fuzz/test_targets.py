"""Every decoder of what comes from outside takes its seeds, and refuses changed ones with its own errors."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import zmq

from fuzz import run
from fuzz.mutate import MAX_BYTES, Hang, mutated, search
from fuzz.seeds import SEEDS
from fuzz.targets import TARGETS

if TYPE_CHECKING:
    import pathlib

# For each target: most take tens of thousands of inputs in a second, those with files or sockets hundreds. `.ci/run`
# asks for more than this.
SECONDS = float(os.environ.get("CLUSTERENV_FUZZ_SECONDS", "0.5"))


@pytest.fixture(scope="module", autouse=True)
def pyzmq_has_its_thread() -> None:
    """The first large frame starts a thread of pyzmq, which stays to the end."""
    zmq.Frame(bytes(2**20), copy=False)


def test_every_target_has_seeds() -> None:
    assert TARGETS.keys() == SEEDS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_taken(name: str) -> None:
    for seed in SEEDS[name]():
        TARGETS[name].decode(seed)


@pytest.mark.threat("T17")
@pytest.mark.parametrize("name", TARGETS)
def test_nonsense_is_refused_by_name(name: str) -> None:
    """The same inputs each time, as many as there is time for."""
    tried, finding = search(TARGETS[name], SEEDS[name](), seed=1, seconds=SECONDS)
    assert finding is None, f"input {tried}, {finding.data!r}:\n{finding.text}"


def test_what_else_is_raised_is_a_finding() -> None:
    def planted(data: bytes) -> None:
        if data[:1] != b"s":
            raise KeyError("planted")

    tried, finding = search(planted, [b"seed"], count=1_000)
    assert finding is not None
    assert 1 < tried < 1_000
    assert isinstance(finding.error, KeyError)
    assert finding.data[:1] != b"s"
    assert search(planted, [b"seed"], count=1_000)[0] == tried, "the same inputs each time"


def test_a_hang_is_a_finding() -> None:
    def hangs(data: bytes) -> None:
        while True:
            pass

    _, finding = search(hangs, [b"seed"], count=1, hang_s=0.05)
    assert finding is not None
    assert isinstance(finding.error, Hang)


def test_mutations_reach_cuts_repeats_and_splices() -> None:
    rng = random.Random(0)
    made = [mutated([b"one seed", b"another"], rng) for _ in range(3_000)]
    assert len(set(made)) > 2_000
    assert any(data and len(data) < 4 for data in made)
    assert 200 < max(map(len, made)) <= MAX_BYTES
    assert any(b"one" in data and b"other" in data for data in made)


def test_the_command_without_atheris(tmp_path: pathlib.Path) -> None:
    assert run.main(run.Args(target="rules", seconds=3, atheris=False, out=tmp_path)) == 0
    (found,) = json.loads((tmp_path / "fuzz.json").read_text())["found"]
    assert found["findings"] == []
    assert found["executions"] > 100
    assert found["engine"] == "mutations"


def test_a_finding_is_told_and_saved(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run.Outcome("rules", "mutations", 1, 7, ["rules-KeyError-7"])
    monkeypatch.setattr(run, "fuzz", lambda name, args: found)
    assert run.main(run.Args(target="rules", seconds=1, out=tmp_path)) == 1
    assert json.loads((tmp_path / "fuzz.json").read_text())["found"] == [dataclasses.asdict(found)]


def test_memory_has_a_limit() -> None:
    """In a process of its own, because limits stay."""
    words = "import fuzz.run; fuzz.run.limit_memory(2**28)\ntry: bytes(2**29)\nexcept MemoryError: print('refused')"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "refused\n", done.stderr


def test_an_unknown_target_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(run.Args(target="nothing")) == 2
    assert "'nothing' is no target" in capsys.readouterr().out
