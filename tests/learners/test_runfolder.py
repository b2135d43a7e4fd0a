"""The folder of a run."""

from __future__ import annotations

import datetime
import errno
import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners.common.runfolder import RunFolder, read_settings

if TYPE_CHECKING:
    import pathlib

NOW = datetime.datetime(2025, 1, 2, 15, 4, 5)


def create(root: pathlib.Path, env_id: str = "CartPole-v1", seed: int = 1) -> RunFolder:
    return RunFolder.create(root, env_id=env_id, algorithm="ppo", seed=seed, now=NOW)


def test_the_name_says_what_the_run_is(tmp_path: pathlib.Path) -> None:
    folder = create(tmp_path / "runs")
    assert folder.path == tmp_path / "runs" / "CartPole-v1__ppo__1__20250102-150405"
    assert folder.path.is_dir()


@pytest.mark.threat("T18")
@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "module:Env-v0", "../../etc/passwd", "a b\nc"])
def test_an_id_never_leaves_the_root(tmp_path: pathlib.Path, env_id: str) -> None:
    folder = create(tmp_path, env_id)
    assert folder.path.parent == tmp_path
    assert "\n" not in folder.path.name


def test_a_long_id_is_cut_to_what_a_folder_may_be_called(tmp_path: pathlib.Path) -> None:
    folder = create(tmp_path, "x" * 300, seed=2**63 - 1)
    assert folder.path.name.endswith("__20250102-150405")
    assert create(tmp_path, "x" * 300, seed=2**63 - 1).path != folder.path


def test_runs_of_one_second_do_not_meet(tmp_path: pathlib.Path) -> None:
    names = [create(tmp_path).path.name for _ in range(3)]
    assert len(set(names)) == 3
    assert names[2].endswith("-3")


def test_latest_points_to_the_newest(tmp_path: pathlib.Path) -> None:
    create(tmp_path, seed=1).point_latest()
    second = create(tmp_path, seed=2)
    second.point_latest()
    assert os.readlink(tmp_path / "latest") == second.path.name
    second.write("ppo", {"seed": 2})
    assert RunFolder.open(tmp_path / "latest").path == second.path.resolve()


def test_a_fresh_folder_does_not_take_the_link(tmp_path: pathlib.Path) -> None:
    first = create(tmp_path, seed=1)
    first.point_latest()
    create(tmp_path, seed=2)
    assert os.readlink(tmp_path / "latest") == first.path.name


def test_a_run_has_begun_with_a_row_or_a_checkpoint(tmp_path: pathlib.Path) -> None:
    rows, saved = create(tmp_path, seed=1), create(tmp_path, seed=2)
    rows.write("ppo", {})
    assert not rows.has_begun
    rows.metrics_file.write_text("seconds,global_step,key,value\n")
    assert not rows.has_begun
    rows.metrics_file.write_text("seconds,global_step,key,value\n1.5,64,charts/SPS,42\n")
    assert rows.has_begun
    saved.checkpoints.mkdir()
    assert saved.has_begun


def test_what_is_discarded_is_gone_with_all_that_it_holds(tmp_path: pathlib.Path) -> None:
    folder, other = create(tmp_path, seed=1), create(tmp_path, seed=2)
    folder.write("ppo", {})
    (folder.path / "events").mkdir()
    folder.discard()
    folder.discard()
    assert list(tmp_path.iterdir()) == [other.path]


def test_the_link_is_a_convenience_only(tmp_path: pathlib.Path) -> None:
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "something of yours").touch()
    create(tmp_path).point_latest()
    assert (tmp_path / "latest" / "something of yours").exists()


def test_one_at_a_time(tmp_path: pathlib.Path) -> None:
    folder = create(tmp_path)
    with folder.held(), pytest.raises(ConfigError, match=folder.path.name), folder.held():
        pass
    with folder.held():
        pass


def test_where_nothing_can_be_locked_everybody_may(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*args: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with create(tmp_path).held():
        pass


@pytest.mark.threat("T19")
def test_settings_come_back_and_no_variable_of_the_environment_is_there(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a-very-secret-key")
    folder = create(tmp_path)
    config = {"seed": 1, "rate": 1e-4, "sizes": [64, 64], "sync": {"rule": "aps"}}
    folder.write("ppo", config)
    assert folder.read() == ("ppo", config)
    text = folder.settings_file.read_text()
    assert "a-very-secret-key" not in text
    assert "WANDB" not in text
    assert "gymnasium" in text
    assert [path.name for path in folder.path.iterdir()] == ["run.toml"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"is no run: it has no run\.toml"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("content", ["format = 2", "not toml", "\0"])
def test_a_file_that_is_no_run_is_refused(tmp_path: pathlib.Path, content: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"run\.toml"):
        read_settings(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('algorithm = "ppo"', r"has format=None; .* A file of your own needs the lines `format = 1` and `algorithm"),
        ("format = 1", r"must have a text for its algorithm"),
        ('format = 1\nalgorithm = "ppo"\nnum_envs = 4', r"'num_envs'.*belong into the table \[config\]"),
        ('format = 1\nalgorithm = "ppo"\n[stream]\nstream_slots = 4', r"'stream'.*belong into the table \[config\]"),
    ],
)
def test_a_file_of_ones_own_that_is_no_run_says_what_is_missing(
    tmp_path: pathlib.Path, content: str, message: str
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_settings(path)


RUN = 'format = 1\nalgorithm = "ppo"\n[config]\nseed = 7\n'
NO_TOML = {
    "nothing": b"",
    "a mark of the byte order": RUN.encode("utf-8-sig"),
    "UTF-16": RUN.encode("utf-16"),
    "a key twice": RUN.encode() + b"seed = 8\n",
}


@pytest.mark.parametrize("content", NO_TOML.values(), ids=NO_TOML.keys())
def test_what_an_editor_may_make_of_a_file_is_refused(tmp_path: pathlib.Path, content: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.toml"):
        read_settings(path)


def test_lines_may_end_as_on_windows(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(RUN.replace("\n", "\r\n").encode())
    assert read_settings(path) == ("ppo", {"seed": 7})


@pytest.mark.threat("T18")
@pytest.mark.parametrize(
    "text",
    [
        "config = 5",
        "config = [1, 2]",
        "config = 'ab'",
        "algorithm = 7",
        "[[config]]",
        f"x = {'[' * 5_000}{']' * 5_000}",
        f"x = {'9' * 5_000}",
    ],
    ids=lambda text: text[:14],
)
def test_a_file_of_other_things_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"format = 1\n{text}\n")
    with pytest.raises(ConfigError, match=r"run\.toml"):
        read_settings(path)


def test_what_is_no_file_is_never_waited_for(tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, "/dev/zero"):
        with pytest.raises(ConfigError, match="cannot be read: it is no ordinary file"):
            read_settings(path)


@pytest.mark.threat("T18")
def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run.toml"
    path.touch()
    os.truncate(path, 2**40)  # it has a hole, and takes no room
    with pytest.raises(ConfigError, match=r"run\.toml cannot be read: it has more than 1,048,576 bytes"):
        read_settings(path)
