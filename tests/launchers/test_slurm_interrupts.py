"""Ctrl-C while a job is handed in to Slurm, whose programs are made up here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterenv.clusters import Slurm
from clusterenv.launchers import slurm
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.commands import Answer
from clusterenv.testing.contracts import KEYS

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping, Sequence


def test_a_job_whose_id_never_came_is_cancelled_by_its_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be in the queue already, and would start nodes hours later that find no head."""
    asked: list[list[str]] = []

    def answer_of(words: Sequence[str], limit_s: float, env: Mapping[str, str] | None = None) -> Answer:
        asked.append(list(words))
        if words[0] == "sbatch":
            raise KeyboardInterrupt
        return Answer(0, "", "")

    monkeypatch.setattr(slurm, "answer_of", answer_of)
    launcher = slurm.SlurmLauncher(Slurm(nodes=1, folder=str(tmp_path)))
    with pytest.raises(KeyboardInterrupt):
        launcher.start(NodeJob(("--head", "x"), KEYS, "python3"))
    handed_in, cancelled = asked[:2]
    (name,) = [word.removeprefix("--job-name=") for word in handed_in if word.startswith("--job-name=")]
    assert cancelled[:2] == ["scancel", f"--name={name}"]
    assert list(tmp_path.iterdir()) == [], "no keys are left"
