"""`clusterenv node` and `clusterenv join`: one clear line, the right exit code, and no key on the screen."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from clusterenv.cli import node as command
from clusterenv.cli.exits import LOST, NOT_STARTED, OK, USAGE
from clusterenv.cli.main import main
from clusterenv.node.member import Membership
from clusterenv.private import write_private
from clusterenv.transport.security import NodeKeys, make_keys
from clusterenv.transport.sockets import Address
from tests.cli.kit import PROGRAM
from tests.zoo import quiet_port

if TYPE_CHECKING:
    import pathlib

HEAD = "tcp+curve://127.0.0.1:5555"


@pytest.fixture
def keys() -> NodeKeys:
    return make_keys().node


@pytest.fixture
def key_file(tmp_path: pathlib.Path, keys: NodeKeys) -> str:
    path = tmp_path / "node.key"
    write_private(path, keys.text())
    return str(path)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Membership]:
    """What would have been run."""
    found: list[Membership] = []
    monkeypatch.setattr(command, "run_node", found.append)
    monkeypatch.setattr("logging.basicConfig", lambda **kwargs: None)
    return found


def fails(capsys: pytest.CaptureFixture[str], code: int, says: str, *words: str) -> str:
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert len(err.strip().splitlines()) == 1, "one line"
    return err


def test_a_node_with_all_flags(joined: list[Membership], key_file: str, keys: NodeKeys) -> None:
    heads = f"{HEAD},tcp+curve://[::1]:7"
    words = ["--head", heads, "--key-file", key_file, "--import", "a.b", "--import", "c", "--workers", "3"]
    assert main(["node", *words, "--name", "n", "--index", "4"]) == OK
    (one,) = joined
    assert one == Membership(
        heads=[Address("127.0.0.1", 5555), Address("::1", 7)],
        keys=keys, imports=("a.b", "c"), workers=3, name="n", index=4, stdin=False,
    )  # fmt: skip


@pytest.mark.parametrize(("told", "words", "code"), [
    (True, ["--alive-file", "/a"], OK), (False, ["--alive-file", "/a"], LOST), (False, [], OK), (True, [], OK)
])  # fmt: skip
def test_an_engine_that_replaces_nodes_sees_whether_this_one_is_done(
    monkeypatch: pytest.MonkeyPatch, key_file: str, told: bool, words: list[str], code: int
) -> None:
    memberships: list[Membership] = []

    def run_node(membership: Membership) -> bool:
        memberships.append(membership)
        return told

    monkeypatch.setattr(command, "run_node", run_node)
    monkeypatch.setattr("logging.basicConfig", lambda **kwargs: None)
    assert main(["node", "--head", HEAD, "--key-file", key_file, *words]) == code
    assert memberships[0].alive_file == "".join(words[1:])


@pytest.mark.parametrize("words", [[], ["--head", HEAD], ["--key-file", "x"], ["--head"], ["--hed", HEAD], ["x"]])
def test_missing_and_unknown_flags(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["node", *words])
    assert stop.value.code == USAGE
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--workers", "many"], ["--index", "x"]])
def test_flags_of_another_type(words: list[str], key_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["node", "--head", HEAD, "--key-file", key_file, *words])
    assert stop.value.code == USAGE


@pytest.mark.parametrize("number", [-1, 1025, 10**20])
def test_workers_that_no_node_has(joined: Any, key_file: str, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    says, more = f"--workers {number} must be between 0 and 1024.", f"--workers={number}"
    fails(capsys, USAGE, says, "node", "--head", HEAD, "--key-file", key_file, more)
    fails(capsys, USAGE, says, "join", "cluster://head:5", "--token-file", key_file, more)
    assert joined == []


@pytest.mark.parametrize("number", [-1, 4096, 2**62 + 1, 10**20])
def test_a_number_that_no_node_has(joined: Any, key_file: str, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A head could not read it, and would never answer."""
    says = f"--index {number} must be between 0 and 4095."
    fails(capsys, USAGE, says, "node", "--head", HEAD, "--key-file", key_file, f"--index={number}")
    assert joined == []


def test_the_largest_numbers(joined: list[Membership], key_file: str) -> None:
    words = ["node", "--head", HEAD, "--key-file", key_file]
    assert main([*words, "--index", "4095", "--workers", "1024"]) == OK
    assert [(each.index, each.workers) for each in joined] == [(4095, 1024)]


@pytest.mark.parametrize("head", ["", "head", "tcp+curve://a", f"{HEAD},", "tcp+curve://[::1:5", "a b"])
def test_a_bad_head(joined: Any, key_file: str, head: str, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, USAGE, "is no address of a head", "node", f"--head={head}", "--key-file", key_file)
    assert joined == []


def test_a_missing_key_file(joined: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fails(capsys, USAGE, "'/no/such' cannot be read", "node", "--head", HEAD, "--key-file", "/no/such")


def test_a_key_file_that_others_can_read(joined: Any, key_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.chmod(key_file, 0o644)
    fails(capsys, USAGE, "chmod 600", "node", "--head", HEAD, "--key-file", key_file)


def test_a_key_file_that_is_none(joined: Any, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "canary"
    path.touch(0o600)
    path.write_bytes(b"canary-of-a-secret \xff")
    err = fails(capsys, USAGE, "this is no key file", "node", "--head", HEAD, "--key-file", str(path))
    assert "canary-of-a-secret" not in err


def test_a_head_that_is_not_there(key_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    port = quiet_port()
    says = f"tried 127.0.0.1:{port} (Connection refused)"
    fails(capsys, NOT_STARTED, says, "node", "--head", f"tcp+curve://127.0.0.1:{port}", "--key-file", key_file)


def test_a_module_that_is_not_there(key_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["node", "--head", HEAD, "--key-file", key_file, "--import", "no_such_module"]
    fails(capsys, USAGE, "--import no_such_module: ModuleNotFoundError", *words)


def run(*words: str, stdin: bytes, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [*PROGRAM, *words],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        env={**os.environ, **variables},
        start_new_session=True,  # no terminal to ask
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


@pytest.mark.parametrize("stdin", [b"", b"\n", b"no keys\n", b"\xff" * 9000, b"{}"])
def test_bad_keys_on_standard_input(stdin: bytes) -> None:
    code, said = run("node", "--head", HEAD, "--key-file", "-", stdin=stdin)
    assert code == USAGE
    assert "this is no key file" in said
    assert len(said.strip().splitlines()) == 1


def test_a_standard_input_that_is_closed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)  # so Python shows a descriptor that nobody opened
    fails(capsys, USAGE, "--key-file -: standard input is closed.", "node", "--head", HEAD, "--key-file", "-")


def test_keys_on_standard_input_are_taken(keys: NodeKeys) -> None:
    where = f"tcp+curve://127.0.0.1:{quiet_port()}"
    code, said = run("node", "--head", where, "--key-file", "-", stdin=keys.text().encode() + b"\nmore")
    assert code == NOT_STARTED
    assert "head address not reachable" in said
    assert keys.secret not in said


def test_the_numbers_of_engines(joined: list[Membership], key_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["node", "--head", HEAD, "--key-file", key_file]
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)
    main(words)
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "5")
    main(words)
    monkeypatch.setenv("SLURM_PROCID", "3")
    main(words)
    monkeypatch.setenv("SLURM_PROCID", "-1")
    main(words)
    main([*words, "--index", "9"])
    assert [each.index for each in joined] == [None, 5, 3, 5, 9]


# join


def test_a_token_from_a_file(joined: list[Membership], key_file: str, keys: NodeKeys) -> None:
    assert main(["join", "cluster://head:5", "--token-file", key_file, "--import", "a"]) == OK
    (one,) = joined
    assert (one.keys, one.heads, one.imports, one.stdin) == (keys, [Address("head", 5)], ("a",), False)


def test_a_token_from_the_environment(
    joined: list[Membership], keys: NodeKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(command.TOKEN_VARIABLE, keys.text())
    assert main(["join", "cluster://head:5"]) == OK
    assert joined[0].keys == keys
    assert command.TOKEN_VARIABLE not in os.environ, "the processes that it starts do not inherit it"


def test_a_token_from_a_prompt(joined: list[Membership], keys: NodeKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(command.TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: keys.text())
    assert main(["join", "cluster://head:5"]) == OK
    assert joined[0].keys == keys


def test_a_bad_token_is_not_echoed(
    joined: Any, keys: NodeKeys, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(command.TOKEN_VARIABLE, keys.text()[:-1])
    err = fails(capsys, USAGE, "this is no key file", "join", "cluster://head:5")
    assert keys.secret not in err


def test_a_good_token_is_not_echoed(keys: NodeKeys) -> None:
    where = f"cluster://127.0.0.1:{quiet_port()}"
    code, said = run("join", where, stdin=b"", CLUSTERENV_TOKEN=keys.text())
    assert code == NOT_STARTED
    assert "head address not reachable" in said
    assert keys.secret not in said


def test_a_token_that_others_can_read(joined: Any, key_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.chmod(key_file, 0o640)
    fails(capsys, USAGE, "chmod 600", "join", "cluster://head:5", "--token-file", key_file)


def test_no_token_and_nobody_to_ask() -> None:
    variables = {command.TOKEN_VARIABLE: ""}
    code, said = run("join", "cluster://127.0.0.1:5", stdin=b"", **variables)
    assert code == USAGE
    assert "Traceback" not in said


@pytest.mark.parametrize("seconds", ["nan", "-1.0", "inf", "1e9"])
def test_how_long_nobody_can_try(joined: Any, key_file: str, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With NaN the time would never be over."""
    says = f"--keep-trying {float(seconds)} must be seconds, from 0 to 1e9."
    fails(capsys, USAGE, says, "join", "cluster://head:5", "--token-file", key_file, f"--keep-trying={seconds}")
    assert joined == []


@pytest.mark.parametrize("words", [[], ["cluster://a"], ["tcp://a:1"], ["cluster://a:1", "cluster://b:1"]])
def test_a_bad_join(words: list[str], joined: Any, key_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: Any = main(["join", *words, "--token-file", key_file])
    except SystemExit as stop:
        code = stop.code
    assert code == USAGE
    assert "Traceback" not in capsys.readouterr().err
    assert joined == []
