"""Keys: made fresh, written for nobody else, and read only from a file that nobody else can read."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ConfigError, LaunchError
from clusterenv.private import write_private
from clusterenv.transport.security import make_keys, open_run, parse_keys, read_key_file

if TYPE_CHECKING:
    import pathlib


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "node.key"


def private(path: pathlib.Path, data: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(data)


@pytest.mark.threat("T02")
def test_keys_are_made_afresh_and_fit_together() -> None:
    one, other = make_keys(), make_keys()
    mine = {one.secret, one.node.secret, one.node.public, one.node.server, one.node.run}
    assert len(mine) == 5
    assert not mine & {other.secret, other.node.secret, other.node.public, other.node.server, other.node.run}
    assert zmq.curve_public(one.secret.encode()) == one.node.server.encode()
    assert zmq.curve_public(one.node.secret.encode()) == one.node.public.encode()


def test_the_secret_of_the_head_is_not_in_what_nodes_get() -> None:
    keys = make_keys()
    assert keys.secret not in keys.node.text()


@pytest.mark.threat("T19")
def test_secrets_are_not_shown() -> None:
    keys = make_keys()
    for shown in (repr(keys), str(keys), f"{keys!r}", repr(keys.node), str(keys.node), repr([keys]), repr({"k": keys})):
        assert keys.secret not in shown
        assert keys.node.secret not in shown


def test_a_key_file_comes_back_as_it_was(path: pathlib.Path) -> None:
    keys = make_keys().node
    write_private(path, keys.text())
    assert read_key_file(path) == keys


def test_a_link_is_never_followed(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "target"
    path.symlink_to(target)
    write_private(target, make_keys().node.text())
    with pytest.raises(ConfigError, match=re.escape(f"{str(path)!r} cannot be read")):
        read_key_file(path)


@pytest.mark.threat("T13")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_file_that_others_can_touch_is_refused(path: pathlib.Path, mode: int) -> None:
    write_private(path, make_keys().node.text())
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"others can read the key file .* \(mode {mode:04o}\): chmod 600 it"):
        read_key_file(path)


@pytest.mark.parametrize(
    ("mode", "fine"), [(0o440, True), (0o640, True), (0o444, False), (0o460, False), (0o450, False)]
)
def test_a_file_of_root_may_be_read_by_its_group(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, mode: int, fine: bool
) -> None:
    """As an ordinary user in a pod finds it. Only root can make such a file."""
    if os.getuid() != 0:
        pytest.skip("only root can make a file of root")
    keys = make_keys().node
    write_private(path, keys.text())
    path.chmod(mode)
    monkeypatch.setattr("os.getuid", lambda: 10001)
    if fine:
        assert read_key_file(path) == keys
    else:
        with pytest.raises(ConfigError, match="others can read the key file"):
            read_key_file(path)


def test_a_missing_file(path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: No such file or directory\."):
        read_key_file(path)


def test_a_fifo_is_refused_and_does_not_block(path: pathlib.Path) -> None:
    os.mkfifo(path, 0o600)
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_key_file(path)  # would never return if it waited for somebody to write


def test_a_folder_is_refused(path: pathlib.Path) -> None:
    path.mkdir(mode=0o700)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_key_file(path)
    assert len(os.listdir("/proc/self/fd")) == before


GOOD = make_keys().node.text()
NO_KEYS: dict[str, bytes] = {
    "empty": b"",
    "cut off": GOOD[:-30].encode(),
    "cut off by one": GOOD[:-1].encode(),
    "twice": 2 * GOOD.encode(),
    "another format": GOOD.replace('"clusterenv": 1', '"clusterenv": 2').encode(),
    "no format": GOOD.replace('"clusterenv": 1, ', "").encode(),
    "a format of another type": GOOD.replace('"clusterenv": 1', '"clusterenv": [1]').encode(),
    "a field more": GOOD.replace("{", '{"extra": 1, ').encode(),
    "a field less": re.sub(r', "public": "[^"]*"', "", GOOD).encode(),
    "a short key": re.sub(r'"secret": "...', '"secret": "', GOOD).encode(),
    "a key with a blank": re.sub(r'"secret": "...', '"secret": "  x', GOOD).encode(),
    "a key of another type": re.sub(r'"secret": ".*"}', '"secret": 7}', GOOD).encode(),
    "a run with a newline": re.sub(r'"run": "..', r'"run": "\\n0', GOOD).encode(),
    "a list": b"[1, 2]",
    "a number": b"17",
    "a deep list": b"[" * 4000,
    "a long number": b"9" * 4090,
    "PEM": b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
    "zmq": b'metadata\ncurve\n    public-key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"\n',
    "not UTF-8": b"\xff\xfe\x00\x80" * 20,
    "UTF-16": GOOD.encode("utf-16"),
    "NUL": b"\x00" * 100,
    "10 MB": b"x" * 10_000_000,
    "10 MB behind the keys": GOOD.encode() + b" " * 10_000_000,
}


@pytest.mark.parametrize("data", NO_KEYS.values(), ids=NO_KEYS.keys())
def test_what_is_no_key_file_is_refused(path: pathlib.Path, data: bytes) -> None:
    private(path, data)
    began = time.thread_time()  # of this thread alone, however busy the machine
    with pytest.raises(ConfigError, match=r"this is no key file of clusterenv, or it was cut off") as caught:
        read_key_file(path)
    assert time.thread_time() - began < 1.0
    assert parse_keys(GOOD).secret not in str(caught.value)
    assert caught.value.__cause__ is None, "no text of the file is shown"
    assert caught.value.__suppress_context__


def test_a_file_that_grows_while_it_is_read_is_read_to_the_limit(path: pathlib.Path) -> None:
    """Only as much as a key file can have is read, whatever the size of the file."""
    private(path, b"x")
    os.truncate(path, 2**40)
    with pytest.raises(ConfigError, match="no key file"):
        read_key_file(path)


@given(st.text(max_size=100) | st.recursive(st.integers(), st.lists, max_leaves=5).map(str))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_keys(text)


@given(st.data())
def test_any_value_in_any_field_is_refused_or_kept(data: Any) -> None:
    import json

    parts = json.loads(GOOD)
    field = data.draw(st.sampled_from(sorted(parts)))
    parts[field] = data.draw(
        st.none() | st.booleans() | st.integers(2) | st.text(max_size=39) | st.just({}) | st.just([])
    )
    if field == "clusterenv" and parts[field] is True:
        return  # equal to 1
    with pytest.raises(ConfigError):
        parse_keys(json.dumps(parts))


# Keys of a run that outlives its head.


def test_the_next_head_has_the_same_keys_and_a_higher_epoch(path: pathlib.Path) -> None:
    first, epoch = open_run(path)
    assert epoch == 0
    assert [open_run(path) for _ in range(2)] == [(first, 1), (first, 2)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_a_killed_head_has_left_aside_is_no_trouble(path: pathlib.Path) -> None:
    first, _ = open_run(path)
    path.with_name(f".{path.name}.new").write_text("half")
    assert open_run(path) == (first, 1)


def test_nodes_cannot_take_the_file_of_the_head_nor_the_head_theirs(path: pathlib.Path) -> None:
    keys, _ = open_run(path)
    with pytest.raises(ConfigError, match="this is no key file"):
        read_key_file(path)
    path.unlink()
    write_private(path, keys.node.text())
    with pytest.raises(ConfigError, match="does not hold the keys of a run"):
        open_run(path)


def test_keys_of_a_run_that_others_can_read_are_refused(path: pathlib.Path) -> None:
    open_run(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"others can read .*chmod 600"):
        open_run(path)


def test_a_link_to_keys_of_a_run_is_never_followed(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    open_run(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        open_run(link)


@pytest.mark.parametrize("epoch", [-1, 2**31, 1.0, "1", None, True, [0]])
def test_an_epoch_that_is_none_is_refused(path: pathlib.Path, epoch: Any) -> None:
    open_run(path)
    content = {**json.loads(path.read_text()), "epoch": epoch}
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="does not hold the keys of a run"):
        open_run(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "{}", "x" * 5000, "[" * 4000])
def test_what_are_no_keys_of_a_run_is_refused_and_kept(path: pathlib.Path, text: str) -> None:
    write_private(path, text)
    with pytest.raises(ConfigError, match="does not hold the keys of a run"):
        open_run(path)
    assert path.read_text() == f"{text}\n"


def test_a_place_where_nothing_can_be_kept(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be kept in"):
        open_run(tmp_path / "file" / "keys")
