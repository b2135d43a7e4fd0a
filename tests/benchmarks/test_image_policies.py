"""The benchmark of policies for images runs, and tells what it measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.image_policies import Args, main

if TYPE_CHECKING:
    import pathlib

    import pytest


def test_every_number_is_written(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(Args(repeats=2, bodies=("shallow",), rows=(1, 2), out=tmp_path))
    told = json.loads((tmp_path / "image-policies.json").read_text())
    assert [line["rows"] for line in told["numbers"]] == [1, 2]
    for line in told["numbers"]:
        assert len(line["open_ms"]) == len(line["prepared_ms"]) == len(line["prepare_ms"]) == 2
        assert min(line["open_ms"]) > 0
    assert capsys.readouterr().out.count("shallow") == 2
