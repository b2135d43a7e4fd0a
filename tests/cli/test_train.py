"""`clusterenv train ppo` as a person runs it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from clusterenv.cli.main import main
from clusterenv.cli.train import size
from clusterenv.learners.common import loop
from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.learners.common.runfolder import RunFolder
from clusterenv.metrics.sinks import csv
from tests.cli.kit import PROGRAM, SMALL, changed
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Runs go to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def latest() -> RunFolder:
    return RunFolder.open("runs/latest")


def test_a_run_leaves_its_folder_and_says_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *SMALL, "--seed", "3"]) == 0
    told = capsys.readouterr()
    folder = latest()
    name = f"runs/{folder.path.name}"
    lines = told.out.splitlines()
    assert lines[0] == f"PPO on CartPole-v1, 4 environments on inproc, seed 3. Run: {name}"
    assert lines[1].startswith(" 64 steps | ")
    assert "| workers 1/1 | lag 0/0.0/0" in lines[1]
    assert lines[-2].startswith("Done: return ")
    assert "64 steps in" in lines[-2]
    assert lines[-1].startswith("Weights: ")
    assert lines[-1].endswith(f"Run: {name}")
    assert told.err == ""
    assert folder.path.name.startswith("CartPole-v1__ppo__3__")
    assert folder.read()[1]["seed"] == 3
    assert {key for _, _, key, _ in csv.read(folder.metrics_file)} >= {"losses/policy_loss", "sync/bytes"}
    assert len(list(folder.checkpoints.iterdir())) == 1


def test_quiet_says_only_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *SMALL, "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Done", "Weights"]


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *SMALL, "--json"]) == 0
    lines = [json.loads(line, parse_constant=pytest.fail) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["global_step"] == 64
    assert "charts/learning_rate" in lines[0]
    assert lines[-1]["summary"]["steps"] == 64
    assert lines[-1]["summary"]["env_id"] == "CartPole-v1"


def test_json_of_a_run_in_which_no_episode_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *changed(SMALL, "--rollout-steps", "4", "--total-steps", "16"), "--json"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last, parse_constant=pytest.fail)["summary"]["final_return"] is None


def test_a_run_in_which_no_episode_has_ended_has_no_return(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *changed(SMALL, "--rollout-steps", "4", "--total-steps", "16"), "--quiet"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Done: no return, since no episode has ended. 0 episodes and 16 steps in")
    assert "nan" not in told


def test_tensorboard_files_go_into_the_folder() -> None:
    assert main(["train", "ppo", *SMALL, "--tensorboard", "--quiet"]) == 0
    assert list((latest().path / "events").glob("events.out.*"))


def test_a_run_that_has_learned_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--cluster", "inproc", "--num-envs", "4", "--rollout-steps", "16", "--mode", "lock step"]
    more = ["--learning-starts", "100", "--total-steps", "192", "--runtime", "torch", "--quiet"]
    assert main(["train", "apex", *small, *more]) == 0
    assert "Nothing was learned" not in capsys.readouterr().out
    # The memory is filled anew, and one batch is not enough.
    assert main(["train", "apex", "--resume", "runs/latest", "--total-steps", "256", "--quiet"]) == 0
    assert "\nNothing was learned since it was resumed at 192 steps: there was not" in capsys.readouterr().out


def test_a_run_goes_on_with_a_larger_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *SMALL, "--quiet"]) == 0
    name = latest().path.name
    assert "\nWeights: 1 syncs of 1 versions" in capsys.readouterr().out
    assert main(["train", "ppo", "--resume", "runs/latest", "--total-steps", "192", "--quiet"]) == 0
    told = capsys.readouterr().out
    assert "192 steps" in told
    assert "\nWeights since it was resumed at 64 steps: 1 syncs of 2 versions" in told
    assert latest().path.name == name
    steps = sorted({step for _, step, _, _ in csv.read(latest().metrics_file)})
    assert steps == [64, 128, 192]
    assert latest().read()[1]["total_steps"] == 192
    capsys.readouterr()
    assert main(["train", "ppo", "--resume", "runs/latest"]) == 2
    assert "has spent its budget: 192 of 192 steps, and a batch takes 64." in capsys.readouterr().err


def test_a_run_without_a_checkpoint_cannot_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *SMALL, "--quiet"]) == 0
    for file in latest().checkpoints.iterdir():
        file.unlink()
    assert main(["train", "ppo", "--resume", "runs/latest"]) == 2
    assert "has no checkpoint to go on from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--env-id", "Acrobot-v1"], "runs/latest has env_id='CartPole-v1'"),
        (["--hidden", "8"], "runs/latest has hidden=None"),
        (["--normalize-observations"], "runs/latest has normalize_observations=False"),
    ],
)
def test_what_the_network_was_made_for_stays(
    changed: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "ppo", *SMALL, "--quiet"]) == 0
    before = latest().settings_file.read_bytes()
    assert main(["train", "ppo", "--resume", "runs/latest", "--total-steps", "128", "--quiet", *changed]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert f"Leave {changed[0]} out" in told
    assert latest().settings_file.read_bytes() == before


def test_a_checkpoint_that_does_not_fit_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    catch = ["--env-id", "clusterenv/Catch-v0", "--env-args"]
    assert main(["train", "ppo", *SMALL, "--quiet", *catch, "rows=5"]) == 0
    before = latest().settings_file.read_bytes()
    longer = ["--resume", "runs/latest", "--total-steps", "128", "--quiet"]
    assert main(["train", "ppo", *longer, *catch, "rows=6"]) == 2
    assert "ConfigError: the checkpoint does not fit" in capsys.readouterr().err
    assert latest().settings_file.read_bytes() == before
    assert main(["train", "ppo", *longer]) == 0


@pytest.mark.parametrize("view", ["--quiet", "--json"])
def test_a_run_that_is_stopped_before_it_has_gone_on_still_has_its_checkpoint(
    view: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    assert main(["train", "ppo", *SMALL, "--quiet"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(loop, "environments", stop)
    assert main(["train", "ppo", "--resume", "runs/latest", "--total-steps", "128", view]) == 130
    out = capsys.readouterr().out
    if view == "--json":
        told = json.loads(out)["summary"]
        assert (told["steps"], told["interrupted"]) == (64, True)
    else:
        name = f"runs/{latest().path.name}"
        again = f"clusterenv train ppo --resume {name}"
        assert out == f"Stopped at 64 steps; a checkpoint is saved. Go on: {again}\n"


def test_a_target_that_is_missed_is_a_failed_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", *SMALL, "--quiet", "--target-return", "500"]) == 1
    assert "The target of 500 was not reached within the budget of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--env-id", "CratPole-v1"], 2, "Did you mean 'CartPole-v1'?"),
        (["--env-id", "x" * 300], 2, "ConfigError: "),
        (["--track"], 2, 'pip install "clusterenv[wandb]"'),
    ],
)
def test_a_wrong_request_is_one_message(
    arguments: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", "ppo", *SMALL, *arguments, "--quiet"]) == code
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    "refused",
    [
        ["ppo", *SMALL, "--env-args", "no_such_argument=1"],
        ["ppo", *SMALL, "--env-id", "CratPole-v1", "--tensorboard"],
        ["sac", "--env-id", "CartPole-v1", "--cluster", "inproc"],
    ],
    ids=["an argument that it does not take", "a name that is not known", "actions that it cannot learn"],
)
def test_a_run_that_is_refused_leaves_no_folder_and_the_link_where_it_was(refused: list[str]) -> None:
    assert main(["train", "ppo", *SMALL, "--quiet"]) == 0
    before = latest().path
    assert main(["train", *refused, "--quiet"]) in (1, 2)
    assert latest().path == before
    assert {path.name for path in pathlib.Path("runs").iterdir()} == {before.name, "latest"}


@pytest.mark.parametrize("when", ["environments", "source_for"])
def test_a_run_that_is_stopped_before_its_first_batch_leaves_no_folder(
    when: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, when, stop)
    assert main(["train", "ppo", *SMALL, "--quiet"]) == 130
    assert capsys.readouterr().out == "Stopped before the first update; there is nothing to go on from.\n"
    assert main(["train", "ppo", *SMALL, "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["summary"]["run"] is None
    assert list(pathlib.Path("runs").iterdir()) == []


def test_a_run_that_fails_after_its_first_row_keeps_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Checkpoints, "save", fail)
    assert main(["train", "ppo", *SMALL, "--quiet"]) == 1
    assert {step for _, step, _, _ in csv.read(latest().metrics_file)} == {64}


def test_a_run_that_fails_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    assert main(["train", "ppo", *SMALL, "--quiet"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(Checkpoints, "save", fail)
    assert main(["train", "ppo", "--resume", "runs/latest", "--total-steps", "128", "--quiet"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "OSError: [Errno 28] No space left on device",
        "The run's last checkpoint is of 64 steps. When this is put right, go on: "
        f"clusterenv train ppo --resume runs/{latest().path.name}",
    ]


def test_a_run_that_cannot_begin_to_go_on_says_how_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    assert main(["train", "ppo", *SMALL, "--quiet"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(csv.CsvSink, "__init__", fail)
    assert main(["train", "ppo", "--resume", "runs/latest", "--total-steps", "128", "--quiet"]) == 1
    assert "\nThe run's last checkpoint is of 64 steps. When this" in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_of_all_runs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("runs").write_text("a file")
    assert main(["train", "ppo", *SMALL]) == 2
    told = capsys.readouterr().err
    assert told == "ConfigError: --runs 'runs': no folder can be made there: File exists. Name a folder of yours.\n"


def test_a_run_does_not_take_the_link_from_one_that_began_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def save_and_begin_another(self: Checkpoints, *args: Any) -> pathlib.Path:
        pathlib.Path("runs", "latest").unlink()
        pathlib.Path("runs", "latest").symlink_to("another")
        return save(self, *args)

    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", save_and_begin_another)
    assert (
        main(["train", "ppo", *changed(SMALL, "--total-steps", "128"), "--checkpoint-every-s", "1e-9", "--quiet"]) == 0
    )
    assert os.readlink("runs/latest") == "another"


def test_of_slots_that_explore_only_some_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--env-id", "clusterenv/Catch-v0", "--cluster", "inproc", "--num-envs", "6", "--total-steps", "600")
    assert main(["train", "apex", *small, "--learning-starts", "100", "--runtime", "torch"]) == 0
    assert "over the last 100 episodes of the 2 slots that explore least." in capsys.readouterr().out
    assert main(["eval", "runs/latest", "--episodes", "2", "--cluster", "inproc"]) == 0
    assert "2 episodes, greedy actions" in capsys.readouterr().out


LONG = [
    *("train", "ppo", "--cluster", "local:1", "--num-envs", "2", "--rollout-steps", "8", "--total-steps", "100000000"),
    *("--epochs", "1", "--minibatches", "1", "--runtime", "torch", "--json"),
]


@pytest.fixture
def long_run() -> Iterator[subprocess.Popen[str]]:
    """A run that would not end today, after its first update."""
    process = subprocess.Popen([*PROGRAM, *LONG], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "global_step" in process.stdout.readline()
    yield process
    process.kill()
    process.communicate(timeout=30)


def test_two_heads_do_not_use_one_folder_but_a_killed_one_has_left_it(
    long_run: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "ppo", "--resume", "runs/latest"]) == 2
    assert f"{latest().path} is used by another run" in capsys.readouterr().err
    long_run.kill()
    long_run.wait(timeout=30)
    assert main(["train", "ppo", "--resume", "runs/latest"]) == 2
    assert "has no checkpoint to go on from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR2, 140)]
)
def test_a_signal_saves_and_leaves_nothing(long_run: subprocess.Popen[str], number: int, code: int) -> None:
    family = psutil.Process(long_run.pid).children(recursive=True)
    assert family
    long_run.send_signal(number)
    out, err = long_run.communicate(timeout=60)
    assert long_run.returncode == code
    assert err == ""
    told = json.loads(out.splitlines()[-1])["summary"]
    assert told["interrupted"]
    saved = sorted(int(path.stem) for path in latest().checkpoints.iterdir())
    assert saved[-1] == told["steps"]
    wait_until(
        lambda: not any(process.is_running() for process in family), limit_s=30.0, otherwise=lambda: f"left: {family}"
    )


@pytest.fixture
def unread() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts runs whose output nobody reads: the pipe holds a few rows only."""
    # As for most people: with a buffer, whose lock a thread that is stuck would hold.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[str]:
            command = [*PROGRAM, *changed(LONG, *arguments)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
            return process

        yield start


def saved(step: int) -> bool:
    return pathlib.Path("runs", "latest", "checkpoints", f"{step:012d}.safetensors").exists()


def rows_written() -> int:
    file = pathlib.Path("runs", "latest", "metrics.csv")
    return file.read_text().count("charts/SPS") if file.exists() else 0


@pytest.mark.fault("F38")
def test_a_console_that_nobody_reads_does_not_stop_the_run(unread: Callable[..., subprocess.Popen[str]]) -> None:
    process = unread("--total-steps", "3200")
    wait_until(lambda: saved(3200), limit_s=60.0)
    out, _ = process.communicate(timeout=60)
    rows = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0
    assert rows[0]["global_step"] == 16
    assert rows[-1]["summary"]["steps"] == 3200


@pytest.mark.fault("F38")
def test_a_reader_that_goes_away_does_not_stop_the_run(unread: Callable[..., subprocess.Popen[str]]) -> None:
    process = unread("--total-steps", "3200")
    assert process.stdout is not None
    assert process.stderr is not None
    assert "global_step" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == "metrics are shown no more: [Errno 32] Broken pipe. The run goes on.\n"
    assert saved(3200)


@pytest.mark.parametrize("view", [["--json"], []])
def test_a_run_without_an_output_shows_nothing(view: list[str]) -> None:
    command = [*PROGRAM, "train", "ppo", *SMALL, *view]
    # By a shell, since Popen cannot close it.
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert saved(64)


@pytest.mark.fault("F38")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_nobody_reads_can_be_ended(
    unread: Callable[..., subprocess.Popen[str]], number: int, code: int
) -> None:
    process = unread()
    wait_until(lambda: rows_written() > 100, limit_s=60.0)  # far more than the pipe holds
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    assert list(pathlib.Path("runs", "latest", "checkpoints").iterdir())


@pytest.mark.fault("F38")
def test_a_run_that_has_ended_waits_for_a_reader_and_can_be_ended(
    unread: Callable[..., subprocess.Popen[str]],
) -> None:
    process = unread("--total-steps", "3200")
    wait_until(lambda: saved(3200), limit_s=60.0)
    # Workers are gone when it says its last line, which fills the pipe.
    wait_until(lambda: not psutil.Process(process.pid).children(recursive=True), limit_s=60.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130


def test_the_line_after_a_stop_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from clusterenv.metrics.sinks.csv import CsvSink

    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CsvSink, "write", stop)
    assert main(["train", "ppo", *SMALL, "--quiet"]) == 130
    told = capsys.readouterr()
    assert told.out == (
        f"Stopped at 64 steps; a checkpoint is saved. Go on: clusterenv train ppo --resume runs/{latest().path.name}\n"
    )
    assert told.err == ""


def test_sizes_are_for_people() -> None:
    assert [size(count) for count in (0, 999, 1000, 1_500_000)] == ["0 bytes", "999 bytes", "1.0 kB", "1.5 MB"]
