"""The benchmark of policies for images runs, and tells what it measured."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from benchmarks.image_policies import Args, main

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def same_cores() -> Iterator[None]:
    """The benchmark stays on one core; the tests after it should not."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


def test_every_number_is_written(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(Args(repeats=2, bodies=("shallow",), rows=(1, 2), out=tmp_path))
    told = json.loads((tmp_path / "image-policies.json").read_text())
    assert [line["rows"] for line in told["numbers"]] == [1, 2]
    for line in told["numbers"]:
        assert len(line["open_ms"]) == len(line["prepared_ms"]) == len(line["prepare_ms"]) == 2
        assert min(line["open_ms"]) > 0
    assert capsys.readouterr().out.count("shallow") == 2
