"""Commands, exit codes and messages."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import clusterenv
from clusterenv.cli import exits, main
from clusterenv.errors import (
    ClusterEnvError,
    ConfigError,
    EnvError,
    LaunchError,
    WeightsCorrupt,
    WeightsError,
    WorkerLost,
    WorkersMissing,
)
from tests.cli.kit import PROGRAM


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out == f"clusterenv {clusterenv.__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in main._commands():
        assert f"clusterenv {command}" in out


@pytest.mark.parametrize("arguments", [[], ["train"]])
def test_an_unfinished_command_is_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(arguments) == 2
    assert "usage: clusterenv" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["trainx"],
            "ConfigError: unknown command 'trainx'. Did you mean 'train'? "
            "Known: bench, doctor, eval, join, node, plot, train.\n",
        ),
        (
            ["train", "pop"],
            "ConfigError: unknown algorithm 'pop'. Did you mean 'ppo'? "
            "Known: apex, impact, impala, ppo, r2d2, sac, vmpo.\n",
        ),
    ],
)
def test_a_slip_is_answered_with_the_nearest(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 2
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (LaunchError("x"), 3),
        (WorkersMissing(1, 2, 3.0, "x"), 3),
        (WorkerLost(0, range(4), "x"), 4),
        (EnvError("x"), 1),
        (WeightsCorrupt("x"), 1),
        (WeightsError("x"), 1),
        (ClusterEnvError("x"), 1),
    ],
)
def test_exit_codes(
    error: ClusterEnvError, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(main, "_commands", lambda: {"train": fail})
    assert main.main(["train"]) == code
    told = capsys.readouterr()
    assert told.err.startswith(f"{type(error).__name__}: ")
    assert "Traceback" not in told.err
    assert told.out == ""


TWICE = {
    "train ppo --seed 1 --seed 2": "--seed is given twice.",
    "train ppo --seed=1 --seed 1": "--seed is given twice.",
    "train ppo --num-envs 4 --num_envs=8": "--num-envs is given twice.",
    "train ppo --sync.rule aps --sync.rule never": "--sync.rule is given twice.",
    "train ppo --env-args a=1 --env-args b=2": "--env-args is given twice. Give it once; several values stand behind",
    "train ppo --anneal --no-anneal": "--anneal and --no-anneal cannot both be given.",
    "eval runs/latest --json --json": "--json is given twice.",
    "bench --env-id A --env-id B": "--env-id is given twice.",
    "plot runs/latest --out a.png --out b.png": "--out is given twice.",
    "doctor --cluster local:1 --cluster local:2": "--cluster is given twice.",
    "join cluster://a:1 --token-file a --token-file b": "--token-file is given twice.",
}


@pytest.mark.parametrize(("line", "message"), TWICE.items(), ids=TWICE)
def test_an_option_that_is_given_twice_is_refused(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(line.split()) == exits.USAGE
    assert f"ConfigError: {message}" in capsys.readouterr().err


def test_one_that_is_given_once_for_each_value_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_commands", lambda: {"node": lambda arguments: len(arguments)})
    assert main.main(["node", "--import", "a", "--import", "b"]) == 4


@pytest.mark.parametrize(
    ("stop", "code"),
    [(KeyboardInterrupt(), 130), (exits.Terminated(), 143), (exits.Terminated(signal.SIGHUP), 129)],
)
def test_a_stop_is_one_line_and_its_own_code(
    stop: KeyboardInterrupt, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def halt(arguments: list[str]) -> int:
        raise stop

    monkeypatch.setattr(main, "_commands", lambda: {"train": halt})
    assert main.main(["train"]) == code
    assert capsys.readouterr().err == "Stopped.\n"
    stop.told = True  # type: ignore[attr-defined]
    assert main.main(["train"]) == code
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_a_message_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(arguments: list[str]) -> int:
        raise OSError(28, "No space left on device", "runs/x/metrics.csv")

    monkeypatch.setattr(main, "_commands", lambda: {"train": full})
    assert main.main(["train"]) == 1
    assert capsys.readouterr().err == "OSError: [Errno 28] No space left on device: 'runs/x/metrics.csv'\n"


def test_our_own_mistakes_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: list[str]) -> int:
        raise AssertionError("a bug")

    monkeypatch.setattr(main, "_commands", lambda: {"train": broken})
    with pytest.raises(AssertionError, match="a bug"):
        main.main(["train"])


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (["train", "ppo"], "torch"),
        (["train", "ppo"], "tyro"),
        (["plot", "x"], "matplotlib"),
        (["eval", "x"], "safetensors"),
    ],
)
def test_a_missing_extra_is_answered_with_the_line_that_installs_it(
    command: list[str], module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main.main(command) == 2
    assert capsys.readouterr().err == (
        f"ConfigError: clusterenv {command[0]} needs '{module}'. Install it: pip install \"clusterenv[train]\"\n"
    )


def test_the_version_loads_nothing_heavy() -> None:
    program = (
        "import sys; from clusterenv.cli.main import main; main(['--version'])\n"
        "print([name for name in ('torch', 'numpy', 'tyro', 'rich', 'gymnasium') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_program_as_the_shell_sees_it() -> None:
    done = subprocess.run([*PROGRAM, "plot", "nowhere"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "'nowhere' is no run" in done.stderr
