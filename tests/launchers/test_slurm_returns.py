"""Jobs of a real Slurm that are requeued, told to leave, suspended or cancelled while a batch uses them."""

from __future__ import annotations

import logging
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from clusterenv import make_vec
from clusterenv.clusters import Slurm
from clusterenv.errors import LaunchError
from clusterenv.launchers import slurm as slurm_module
from tests.conformance.kit import NUM_ENVS, QUIET, TRIAL, actions, lost, slots
from tests.services import interpreter
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from clusterenv import ClusterEnv

pytestmark = [pytest.mark.usefixtures("slurm"), pytest.mark.slow]

LIMIT_S = 90.0
ALL = list(range(NUM_ENVS))


@dataclass
class Batch:
    """A batch, and the job that it runs on."""

    envs: ClusterEnv
    job: str

    def ask(self, *words: str) -> str:
        """Have a program of Slurm do something with the job."""
        return subprocess.run([*words, self.job], capture_output=True, check=True, text=True, timeout=LIMIT_S).stdout

    def step(self) -> tuple[list[int], list[int]]:
        """The slots that are lost after a step, and how many steps each is from its reset."""
        observations, *_, infos = self.envs.step(actions(self.envs))
        np.testing.assert_array_equal(observations[:, 0], ALL)
        return lost(infos), observations[:, 1].tolist()


@pytest.fixture(name="batches")
def _batches(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Batch]]:
    """One batch on two hosts, in a list: its memory lives as long as somebody holds it."""
    monkeypatch.setattr(slurm_module, "LOOK_S", 0.2)
    folder = tmp_path / "keys"
    cluster = Slurm(nodes=2, workers=1, python=interpreter(tmp_path), folder=str(folder), wait_s=LIMIT_S)
    envs = make_vec(TRIAL, NUM_ENVS, cluster=cluster, slot_kwargs=slots())
    envs.reset(seed=QUIET)
    envs.step(actions(envs))
    (private,) = folder.iterdir()
    words = ["squeue", "-h", "-o", "%i", f"--name=clusterenv-{private.name}"]
    job = subprocess.run(words, capture_output=True, check=True, text=True, timeout=LIMIT_S).stdout.strip()
    opened = [Batch(envs, job)]
    del envs
    yield opened
    opened.pop().envs.close()
    assert not list(folder.iterdir()), "the folder with the keys is gone"


@pytest.mark.parametrize("words", [("scontrol", "requeue"), ("scancel", "--signal=USR2"), ("scancel", "--signal=TERM")])
def test_nodes_of_a_requeued_job_take_their_places_again(batches: list[Batch], words: tuple[str, ...]) -> None:
    batches[0].ask(*words)
    told = [batches[0].step()]
    while set().union(*(slots_lost for slots_lost, _ in told)) != set(ALL):
        told.append(batches[0].step())
    assert sorted(slot for slots_lost, _ in told for slot in slots_lost) == ALL, "each is told once"
    for _ in range(3):
        slots_lost, steps = batches[0].step()
        assert slots_lost == []
    assert max(steps) <= 4, "all began afresh"
    assert "Restarts=1" in batches[0].ask("scontrol", "show", "job")


def test_a_job_that_is_suspended_for_too_long_gets_fresh_nodes(
    batches: list[Batch], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node: Any = batches[0].envs._engine.node
    monkeypatch.setattr(node._joining, "silence_s", 5.0)
    caplog.set_level(logging.WARNING)
    job = batches[0].job

    def resume() -> None:
        wait_until(lambda: "is lost: " in caplog.text, LIMIT_S)
        subprocess.run(["scontrol", "resume", job], check=True, timeout=LIMIT_S)

    thread = threading.Thread(target=resume)
    batches[0].ask("scontrol", "suspend")
    thread.start()
    told: list[int] = []
    while told != ALL:  # it may take some steps before Slurm has stopped the processes
        told = sorted(told + batches[0].step()[0])
    thread.join(LIMIT_S)
    for _ in range(3):
        assert batches[0].step()[0] == []
    assert "Restarts=0" in batches[0].ask("scontrol", "show", "job")


@pytest.mark.fault("F49")
def test_a_job_that_somebody_cancels_stays_cancelled(batches: list[Batch]) -> None:
    batches[0].ask("scancel")

    def go_on() -> None:
        while True:
            batches[0].step()

    with pytest.raises(LaunchError, match="is CANCELLED"):
        go_on()
    told = batches[0].ask("scontrol", "show", "job")
    assert "JobState=CANCELLED" in told
    assert "Restarts=0" in told
