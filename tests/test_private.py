"""Files that only their owner can read."""

from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING

import pytest

from clusterenv.private import holds, write_private

if TYPE_CHECKING:
    import pathlib


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "secret"


@pytest.mark.threat("T13")
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_it_is_for_its_owner_alone_whatever_the_umask(path: pathlib.Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_private(path, "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "text\n"


@pytest.mark.threat("T14")
def test_an_existing_file_is_never_overwritten(path: pathlib.Path) -> None:
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        write_private(path, "text")
    assert path.read_text() == "mine"


@pytest.mark.threat("T13")
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_never_followed(path: pathlib.Path, tmp_path: pathlib.Path, there: bool) -> None:
    target = tmp_path / "target"
    if there:
        target.write_text("precious")
    path.symlink_to(target)
    with pytest.raises(FileExistsError):
        write_private(path, "text")
    assert target.exists() == there
    assert not there or target.read_text() == "precious"


def test_a_folder_that_is_not_there(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_private(tmp_path / "no" / "secret", "text")


def test_of_many_writers_one_wins_and_the_file_is_whole(path: pathlib.Path) -> None:
    problems: list[OSError] = []
    texts = [str(number) * 500 for number in range(8)]

    def write(text: str) -> None:
        try:
            write_private(path, text)
        except FileExistsError as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(problems) == 7
    assert path.read_text().strip() in texts


def test_a_file_holds_its_text_and_no_other(path: pathlib.Path) -> None:
    assert not holds(path, "text")
    write_private(path, "text")
    assert holds(path, "text")
    assert holds(path, "text\n")
    assert not holds(path, "tex")
    assert not holds(path, "text and more")


def test_a_file_that_others_can_read_holds_nothing(path: pathlib.Path) -> None:
    write_private(path, "text")
    path.chmod(0o640)
    assert not holds(path, "text")


def test_a_link_and_a_folder_hold_nothing(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write_private(path, "text")
    (tmp_path / "link").symlink_to(path)
    assert not holds(tmp_path / "link", "text")
    assert not holds(tmp_path, "text")
