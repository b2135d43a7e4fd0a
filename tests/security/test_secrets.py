"""Secrets that users put where others can read them: they are told, and we do not spread them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusterenv.cli.exits import USAGE
from clusterenv.cli.main import main
from clusterenv.learners.common.env_args import secrets_among
from tests.cli.kit import SMALL

if TYPE_CHECKING:
    import pathlib

CANARY = "canary-of-the-secret"


def told(
    where: str, line: str, folder: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    """The exit code and what is written, of a run with this line in its file, or these words as options."""
    monkeypatch.chdir(folder)
    words = line.split()
    if where == "file":
        (folder / "run.toml").write_text(f'format = 1\nalgorithm = "ppo"\n[config]\n{line}\n')
        words = ["--config", "run.toml"]
    code = main(["train", "ppo", *words, *SMALL])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.mark.threat("T19")
@pytest.mark.parametrize(
    ("where", "line"),
    [("file", f'env_args = ["api_key={CANARY}"]'), ("options", f"--env-args api_key={CANARY}")],
    ids=["file", "options"],
)
def test_an_argument_that_seems_to_be_a_secret_is_warned_about(
    where: str,
    line: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, said = told(where, line, tmp_path, capsys, monkeypatch)
    (warning,) = [line for line in said.splitlines() if "env_args has api_key, in plain text" in line]
    assert "from a file or an environment variable" in warning
    assert CANARY not in warning


def test_a_setting_that_does_not_exist_is_refused_without_its_value(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = told("file", f'wandb_api_key = "{CANARY}"', tmp_path, capsys, monkeypatch)
    assert code == USAGE
    assert "wandb_api_key" in said
    assert CANARY not in said


def test_a_usual_run_is_not_warned_about(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, said = told("options", "", tmp_path, capsys, monkeypatch)
    assert "in plain text" not in said


@pytest.mark.parametrize("name", ["password", "DB_PASSWORD", "token", "hf_token", "api_key", "AWS_SECRET_KEY"])
def test_names_of_secrets(name: str) -> None:
    assert secrets_among([f"{name}=x"]) == [name]


@pytest.mark.parametrize("name", ["key", "max_tokens", "token_file", "tokenizer", "key_delay", "game"])
def test_names_of_other_things(name: str) -> None:
    assert secrets_among([f"{name}=x"]) == []
