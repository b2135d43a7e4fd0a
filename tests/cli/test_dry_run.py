"""`--dry-run` of the commands that start clusters: they show what would be started, and leave nothing."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.cli.exits import OK, USAGE
from clusterenv.cli.main import main
from tests.cli.kit import SMALL

if TYPE_CHECKING:
    import pathlib

    Told = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty folder that is home and current folder, in which no process can be started."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)

    def refuse(*words: Any, **options: Any) -> Any:
        pytest.fail(f"a process was started: {words}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    return folder


def shown(capsys: Told, *words: str) -> str:
    capsys.readouterr()
    assert main([*words, "--dry-run"]) == OK
    told = capsys.readouterr()
    assert told.err == ""
    return told.out


CLUSTERS = {
    "slurm:nodes=4,partition=cpu": ("#SBATCH --nodes=4\n", "#SBATCH --partition=cpu\n", "srun --nodes=4"),
    "tcp:nodes=2": ("-m clusterenv node --head tcp+curve://127.0.0.1:0", "--index 1"),
    "join:nodes=2": ("clusterenv join cluster://",),
    "local:4": ("local:4 would start 2 worker processes on this host, for 2 environments.\n",),
    "inproc": ("inproc would start nothing: the environments run in this process, for 2 environments.\n",),
}


@pytest.mark.parametrize(("cluster", "parts"), CLUSTERS.items(), ids=CLUSTERS)
def test_train_shows_what_would_be_started(
    home: pathlib.Path, capsys: Told, cluster: str, parts: tuple[str, ...]
) -> None:
    told = shown(capsys, "train", "impala", "--num-envs", "2", "--cluster", cluster)
    for part in parts:
        assert part in told
    assert list(home.iterdir()) == []


def test_nodes_import_the_module_of_the_environment(home: pathlib.Path, capsys: Told) -> None:
    words = ["train", "ppo", "--cluster", "tcp:nodes=1,imports=other", "--env-id", "my.envs:Maze-v0"]
    assert " --import other --import my.envs " in shown(capsys, *words)
    words = ["train", "vmpo", "--cluster", "tcp:nodes=1", "--tasks", "a:A-v0", "b:B-v0 delay=2"]
    assert " --import a --import b " in shown(capsys, *words)


def test_machines_get_an_object(home: pathlib.Path, capsys: Told) -> None:
    told = json.loads(shown(capsys, "train", "ppo", "--cluster", "local:2", "--json"))
    assert told == {"would_start": "local:2 would start 2 worker processes on this host, for 32 environments."}


def test_what_is_typed_for_this_run_only_is_shown_too(home: pathlib.Path, capsys: Told) -> None:
    assert main(["train", "ppo", "--cluster", "tcp:nodes=1", "--insecure", "--dry-run"]) == OK
    told = capsys.readouterr()
    assert "--head tcp://127.0.0.1:0 --insecure" in told.out
    assert "INSECURE" in told.err


def test_what_is_wrong_is_refused_all_the_same(home: pathlib.Path, capsys: Told) -> None:
    assert main(["train", "ppo", "--cluster", "slrum:nodes=4", "--dry-run"]) == USAGE
    assert "Did you mean 'slurm'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small run of PPO on CartPole."""
    runs = tmp_path_factory.mktemp("runs")
    assert main(["train", "ppo", *SMALL, "--quiet", "--runs", str(runs)]) == OK
    return runs / "latest"


def test_a_run_that_would_go_on(run: pathlib.Path, home: pathlib.Path, capsys: Told) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.resolve().rglob("*")}
    words = ["train", "ppo", "--resume", str(run), "--cluster", "slurm:nodes=2", "--total-steps", "128"]
    assert "#SBATCH --nodes=2\n" in shown(capsys, *words)
    assert {path: path.stat().st_mtime_ns for path in run.resolve().rglob("*")} == before
    assert main([*words, "--env-id", "Acrobot-v1", "--dry-run"]) == USAGE
    assert "has env_id='CartPole-v1'" in capsys.readouterr().err


def test_eval_shows_what_would_be_started(run: pathlib.Path, home: pathlib.Path, capsys: Told) -> None:
    words = ["eval", str(run), "--episodes", "3"]
    assert "#SBATCH --nodes=2\n" in shown(capsys, *words, "--cluster", "slurm:nodes=2")
    assert shown(capsys, *words, "--cluster", "local:8").startswith("local:8 would start 3 worker processes")
    assert "would_start" in json.loads(shown(capsys, *words, "--cluster", "inproc", "--json"))


def test_bench_shows_what_would_be_started(home: pathlib.Path, capsys: Told) -> None:
    words = ["bench", "--env-id", "my.envs:Maze-v0"]
    assert "--import my.envs " in shown(capsys, *words, "--cluster", "slurm:nodes=2")
    assert shown(capsys, *words, "--cluster", "inproc").startswith("inproc would start nothing")


def test_the_doctor_says_the_same_of_this_host(home: pathlib.Path, capsys: Told) -> None:
    told = shown(capsys, "doctor", "--cluster", "local:3")
    assert told.splitlines() == ["ok  the cluster is local:3", "local:3 would start 3 worker processes on this host."]
