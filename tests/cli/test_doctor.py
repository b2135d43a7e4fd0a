"""`clusterenv doctor`: it starts a cluster, looks at it, and names the first thing that is wrong."""

from __future__ import annotations

import pathlib
import re
import shlex
from typing import Any

import pytest

from clusterenv._version import __version__
from clusterenv.cli.exits import NOT_STARTED, OK, USAGE
from clusterenv.cli.main import main
from clusterenv.node import joining
from clusterenv.node.joining import Joining
from tests.node.puppets import Theatre

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "clusters" / "README.md"
COMMANDS = re.findall(r"^clusterenv (doctor [^#\n]*)", PAGE.read_text(), re.MULTILINE)


def test_the_page_shows_the_doctor() -> None:
    assert len(COMMANDS) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_finds_nothing_wrong(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == OK
    told = capsys.readouterr()
    assert told.err == ""
    assert told.out.startswith("ok  the cluster is tcp")
    if "--dry-run" in command:
        assert told.out.count("-m clusterenv node --head tcp+curve://127.0.0.1:") == 2
        assert "joined" not in told.out
    else:
        assert "2 nodes joined" in told.out
        assert "CartPole-v1 was built and stepped on every node" in told.out
        assert told.out.count("ok  node ") == 2


@pytest.mark.parametrize("words", [[], ["--env-id", "CartPole-v1"]])
def test_every_machine_joins_once(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may have to walk there and type."""
    gathered: list[Joining] = []
    gather = Joining.gather

    def counted(self: Joining, num_envs: int) -> Any:
        gathered.append(self)
        return gather(self, num_envs)

    monkeypatch.setattr(Joining, "gather", counted)
    assert main(["doctor", "--cluster", "tcp:nodes=1", *words]) == OK
    assert len(gathered) == 1


def test_what_a_node_says_of_itself_steers_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theatre = Theatre(count=1)
    theatre.hellos[0] = dict.fromkeys(("name", "python", "gymnasium"), "\x1b]0;owned\x07\x1b[2Ja\rb\nok")
    monkeypatch.setattr(joining, "Hub", lambda keys, host, port, **options: theatre)
    monkeypatch.setattr(joining, "launcher_for", lambda cluster: theatre)
    assert main(["doctor", "--cluster", "tcp:nodes=1"]) == OK
    said = capsys.readouterr().out.splitlines()
    assert said[2] == f"ok  node ab ok: 1 cores, Python ab ok, Gymnasium ab ok, clusterenv {__version__}"
    assert len(said) == 4


def test_this_host_has_no_nodes_to_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--cluster", "inproc", "--env-id", "CartPole-v1"]) == OK
    assert capsys.readouterr().out.splitlines()[0] == "ok  the cluster is inproc"


WRONG = {
    "unknown kind": ("tpc:nodes=2", USAGE, "Did you mean"),
    "python that is not there": ("tcp:nodes=1,python=/nowhere/python", NOT_STARTED, "/nowhere/python"),
    "python without clusterenv": ("tcp:nodes=1,python=/bin/false", NOT_STARTED, "ended with exit code 1"),
    "module that is not there": ("tcp:nodes=1,imports=no_such_module", NOT_STARTED, "--import no_such_module"),
}


@pytest.mark.parametrize(("cluster", "code", "words"), WRONG.values(), ids=WRONG.keys())
def test_the_first_thing_that_is_wrong_is_named(
    cluster: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--cluster", cluster]) == code
    assert words in capsys.readouterr().err


def test_an_environment_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--cluster", "tcp:nodes=1,workers=1", "--env-id", "NoSuchEnv-v0"]) == USAGE
    assert "NoSuchEnv-v0" in capsys.readouterr().err


@pytest.mark.threat("T19")
def test_keys_are_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--cluster", "tcp:nodes=1", "--dry-run"])
    assert "secret" not in capsys.readouterr().out
