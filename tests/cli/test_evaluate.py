"""`clusterenv eval` as a person runs it."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.cli.evaluate import parse_for_run
from clusterenv.cli.exits import LOST
from clusterenv.cli.main import main
from clusterenv.config import Timeouts
from clusterenv.errors import WorkerLost
from clusterenv.learners.common.runfolder import RunFolder
from tests.cli.kit import SMALL, changed

if TYPE_CHECKING:
    import pathlib

    Told = pytest.CaptureFixture[str]

HERE = ["--cluster", "inproc"]


@pytest.fixture(scope="module")
def pole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a small run of PPO on CartPole."""
    return trained(tmp_path_factory.mktemp("pole"), "ppo", *SMALL)


def trained(runs: pathlib.Path, *arguments: str) -> str:
    assert main(["train", *arguments, "--quiet", "--runs", str(runs)]) == 0
    return str(runs / "latest")


def evaluated(capsys: Told, *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["eval", *arguments, *HERE, "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return told


def test_a_return_that_is_no_number_is_null_for_machines(
    pole: str, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterenv.cli.evaluate.report", lambda *arguments: {"returns": [math.inf]})
    assert evaluated(capsys, pole, "--episodes", "1") == {"returns": [None]}


def test_limits_are_those_of_the_run_unless_others_are_named(tmp_path: pathlib.Path) -> None:
    run = trained(tmp_path, "ppo", *SMALL, "--timeouts.step-s", "300", "--timeouts.reset-s", "200")
    assert parse_for_run([run]).timeouts == Timeouts(step_s=300.0, reset_s=200.0)
    assert parse_for_run([run, "--timeouts.step-s", "60"]).timeouts == Timeouts(reset_s=200.0)


def test_a_worker_that_is_lost_ends_it_if_that_is_asked_for(
    pole: str, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def refuse(*tasks: Any, **options: Any) -> Any:
        asked.update(options)
        raise WorkerLost(0, range(1), "it was asked for")

    monkeypatch.setattr("clusterenv.learners.common.environments.make", refuse)
    assert main(["eval", pole, "--on-loss", "raise", "--timeouts.step-s", "3", *HERE]) == LOST
    assert asked == {"on_loss": "raise", "timeouts": Timeouts(step_s=3.0)}


def test_it_says_what_came_of_it(pole: str, capsys: Told) -> None:
    capsys.readouterr()
    assert main(["eval", pole, "--episodes", "5", "--seed", "3", *HERE]) == 0
    told = capsys.readouterr()
    first, returns, lengths = told.out.splitlines()
    assert first == "PPO on CartPole-v1 after 64 steps: 5 episodes, sampled actions, seed 3."
    assert [part.split()[0] for part in returns.removeprefix("return: ").split(", ")] == [
        *("mean", "deviation", "min", "max")
    ]
    assert lengths.removeprefix("length") == returns.removeprefix("return")  # in CartPole every step counts 1
    assert told.err == ""


def test_machines_get_all_of_it(pole: str, capsys: Told) -> None:
    told = evaluated(capsys, pole, "--episodes", "5", "--num-envs", "2")
    assert (told["algorithm"], told["env_id"], told["global_step"]) == ("ppo", "CartPole-v1", 64)
    assert (told["episodes"], told["greedy"], told["cut"], told["films"]) == (5, False, 0, [])
    assert told["run"] == RunFolder.open(pole).path.name
    assert len(told["returns"]) == len(told["lengths"]) == 5
    assert told["return"]["mean"] == pytest.approx(sum(told["returns"]) / 5)
    assert told["length"]["max"] == max(told["lengths"])


def test_the_seed_decides_and_greedy_is_not_sampled(pole: str, capsys: Told) -> None:
    once, again, other, greedy = (
        evaluated(capsys, pole, *more)["returns"] for more in ((), ("--sample",), ("--seed", "5"), ("--greedy",))
    )
    assert once == again
    assert once != other
    assert once != greedy


@pytest.mark.parametrize(
    "arguments",
    [
        ("impala", "--lstm", "8", "--last-inputs"),
        ("impact", "--lstm", "8"),
        ("vmpo", "--body", "mlp"),
        ("apex", "--learning-starts", "8"),
    ],
)
def test_every_learner_can_be_measured(tmp_path: pathlib.Path, capsys: Told, arguments: tuple[str, ...]) -> None:
    options = [option for option in SMALL if option not in ("--epochs", "1", "--minibatches", "2")]
    run = trained(tmp_path, *arguments, *options, "--env-id", "clusterenv/Recall-v0", "--env-args", "delay=2")
    assert evaluated(capsys, run, "--episodes", "6")["lengths"] == [4] * 6
    other = evaluated(capsys, run, "--episodes", "6", "--env-args", "delay=5")
    assert other["lengths"] == [7] * 6


def test_what_is_judged_greedily_cannot_be_sampled(tmp_path: pathlib.Path, capsys: Told) -> None:
    options = [option for option in SMALL if option not in ("--epochs", "1", "--minibatches", "2")]
    run = trained(tmp_path, "apex", "--learning-starts", "8", *options)
    assert main(["eval", run, *HERE, "--sample"]) == 2
    assert "--sample with a run of apex" in capsys.readouterr().err
    assert evaluated(capsys, run, "--episodes", "2")["greedy"]


@pytest.fixture(scope="module")
def recalls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a small run of V-MPO on two tasks."""
    small = ["--cluster", "inproc", "--num-envs", "4", "--rollout-steps", "8", "--total-steps", "32"]
    tasks = ["--tasks", "clusterenv/Recall-v0 delay=1", "clusterenv/Recall-v0 delay=4"]
    return trained(tmp_path_factory.mktemp("recalls"), "vmpo", *small, *tasks, "--runtime", "torch")


def test_several_tasks_are_told_apart(recalls: str, capsys: Told) -> None:
    assert RunFolder.open(recalls).path.name.startswith("clusterenv-Recall-v0__vmpo__")
    told = evaluated(capsys, recalls, "--episodes", "7", "--num-envs", "5")
    assert told["lengths"] == [3] * 2 + [6] * 2 + [3] * 2 + [6]  # four slots, two of each task
    assert {name: task["length"]["mean"] for name, task in told["tasks"].items()} == {
        "clusterenv-Recall-v0-delay=1": 3.0,
        "clusterenv-Recall-v0-delay=4": 6.0,
    }
    capsys.readouterr()
    assert main(["eval", recalls, "--episodes", "4", *HERE]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("VMPO on clusterenv/Recall-v0 after 32 steps: 4 episodes")
    assert lines[1] == "clusterenv-Recall-v0-delay=1: 2 episodes."
    assert lines[4] == "clusterenv-Recall-v0-delay=4: 2 episodes."
    assert lines[3].startswith("length: mean 3.00, deviation 0.00")
    assert lines[6].startswith("length: mean 6.00, deviation 0.00")


def test_arguments_beside_are_for_all_tasks(recalls: str, capsys: Told) -> None:
    assert evaluated(capsys, recalls, "--episodes", "2", "--env-args", "delay=2")["lengths"] == [4, 4]


@pytest.mark.parametrize("option", ["--episodes", "--num-envs"])
def test_every_task_needs_an_episode(recalls: str, capsys: Told, option: str) -> None:
    assert main(["eval", recalls, option, "1", *HERE]) == 2
    assert "must both be at least 2: the run has so many tasks" in " ".join(capsys.readouterr().err.split())


def test_an_episode_without_an_end_is_cut_and_told(pole: str, capsys: Told) -> None:
    capsys.readouterr()
    assert main(["eval", pole, "--episodes", "3", "--max-steps", "4", *HERE]) == 0
    told = capsys.readouterr()
    assert "length: mean 4.00, deviation 0.00" in told.out
    assert told.err == "3 of these episodes did not end and were cut after 4 steps (--max-steps).\n"


def test_atari_games_are_played_to_their_end(tmp_path: pathlib.Path, capsys: Told) -> None:
    pytest.importorskip("ale_py", reason='ale-py is not installed: pip install "clusterenv[atari]"')
    pytest.importorskip("cv2", reason='OpenCV is not installed: pip install "clusterenv[atari]"')
    small = ["--num-envs", "1", "--rollout-steps", "2", "--total-steps", "2", "--body", "shallow", *HERE]
    lives = ["--env-id", "clusterenv/AtariBreakout-v0", "--mode", "lock step", "--runtime", "torch"]
    run = trained(tmp_path, "impala", *small, *lives)
    whole = evaluated(capsys, run, "--episodes", "1")
    # With episodic_life a reset in the middle of a game presses the button; without it the agent has to.
    other = evaluated(capsys, run, "--episodes", "1", "--env-args", "episodic_life=true")
    assert whole["lengths"] != other["lengths"]


def test_films_show_the_episodes_that_were_counted(pole: str, tmp_path: pathlib.Path, capsys: Told) -> None:
    pytest.importorskip("pygame")
    from PIL import Image

    told = evaluated(capsys, pole, "--episodes", "3", "--video", str(tmp_path / "films"), "--films", "2")
    assert len(told["films"]) == 2
    for path, length in zip(told["films"], told["lengths"], strict=False):
        with Image.open(path) as image:
            # Frames that look the same are one in the file, which lasts as long.
            assert image.n_frames <= length + 1  # type: ignore[attr-defined]
            shown = 0.0
            for frame in range(image.n_frames):  # type: ignore[attr-defined]
                image.seek(frame)
                shown += image.info["duration"]
            assert shown == 20 * (length + 1)  # 50 frames per second


def test_of_several_tasks_only_slots_that_played_are_filmed(tmp_path: pathlib.Path, capsys: Told) -> None:
    """Three could play, but two tasks have two slots: a third film would show an episode that was not counted."""
    pytest.importorskip("pygame")
    small = ["--cluster", "inproc", "--num-envs", "4", "--rollout-steps", "8", "--total-steps", "32"]
    tasks = ["--tasks", "CartPole-v1 max_episode_steps=3", "CartPole-v1 max_episode_steps=5"]
    run = trained(tmp_path / "runs", "vmpo", *small, *tasks, "--runtime", "torch")
    told = evaluated(capsys, run, "--episodes", "3", "--num-envs", "3", "--video", str(tmp_path / "films"))
    assert told["lengths"] == [3, 3, 5]  # two of the first slot
    assert len(told["films"]) == 2


def test_a_damaged_checkpoint_is_passed_over(tmp_path: pathlib.Path, capsys: Told) -> None:
    longer = changed(SMALL, "--total-steps", "192", "--checkpoint-every-s", "1e-9")
    folder = RunFolder.open(trained(tmp_path, "ppo", *longer))
    newest = max(folder.checkpoints.iterdir())
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    assert evaluated(capsys, str(folder.path), "--episodes", "1")["global_step"] == 128


def test_a_run_that_has_saved_nothing_cannot_be_measured(tmp_path: pathlib.Path, capsys: Told) -> None:
    folder = RunFolder.open(trained(tmp_path, "ppo", *SMALL))
    for file in folder.checkpoints.iterdir():
        file.unlink()
    assert main(["eval", str(folder.path)]) == 2
    assert "has no checkpoint to evaluate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere' is no run"),
        (["RUN", "--env-args", "delay"], "not name=value"),
        (["RUN", "--cluster", "cloud"], "cloud"),
        (["RUN", "--episodes", "0"], "episodes=0 must be at least 1"),
        (["RUN", "--films", "2"], "--films 2 says how many, and not where: add --video FOLDER"),
        (["RUN", "--greedy", "--sample"], "--greedy and --sample cannot both be given"),
    ],
)
def test_a_wrong_request_is_refused(pole: str, capsys: Told, arguments: list[str], message: str) -> None:
    try:
        code = main(["eval", *(pole if argument == "RUN" else argument for argument in arguments)])
    except SystemExit as stop:  # tyro has said why
        code = int(stop.code or 0)
    assert code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_an_environment_that_draws_nothing_cannot_be_filmed(tmp_path: pathlib.Path, capsys: Told) -> None:
    run = trained(tmp_path, "ppo", *SMALL, "--env-id", "clusterenv/Catch-v0")
    assert main(["eval", run, *HERE, "--video", str(tmp_path / "films")]) == 2
    assert "clusterenv/Catch-v0 draws no pictures" in capsys.readouterr().err
    assert not (tmp_path / "films").exists()


def test_a_folder_for_films_is_made_before_anybody_plays(
    pole: str, tmp_path: pathlib.Path, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(*_: Any, **__: Any) -> Any:
        raise AssertionError("an episode was played")

    monkeypatch.setattr("clusterenv.learners.common.evaluate.play", play)
    (tmp_path / "file").touch()
    for folder, why in (("file", "File exists"), ("file/below", "Not a directory")):
        assert main(["eval", pole, *HERE, "--video", str(tmp_path / folder)]) == 2
        assert f"--video {tmp_path / folder}: {why}. Name a folder that can be made." in capsys.readouterr().err
    monkeypatch.setattr("os.access", lambda path, mode: path != str(tmp_path))  # who is root may write everywhere
    assert main(["eval", pole, *HERE, "--video", str(tmp_path)]) == 2
    assert f"--video {tmp_path}: you may not write there. Name a folder of yours." in capsys.readouterr().err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_scores_are_told_although_no_film_can_be_made(
    pole: str, tmp_path: pathlib.Path, capsys: Told, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    pytest.importorskip("pygame")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clusterenv.learners.common.film.save_gif", full)
    capsys.readouterr()
    assert main(["eval", pole, *HERE, "--episodes", "3", "--video", str(tmp_path), *form]) == 1
    told = capsys.readouterr()
    assert told.err == "OSError: [Errno 28] No space left on device\n"
    if form:
        scores = json.loads(told.out)
        assert (len(scores["returns"]), scores["films"]) == (3, [])
    else:
        assert [line.split()[0] for line in told.out.splitlines()] == ["PPO", "return:", "length:"]


def test_films_without_pillow_are_one_message(
    pole: str, tmp_path: pathlib.Path, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert main(["eval", pole, *HERE, "--video", str(tmp_path)]) == 2
    assert 'Install it: pip install "clusterenv[train]"' in capsys.readouterr().err
