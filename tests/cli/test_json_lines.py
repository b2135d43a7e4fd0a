"""JSON that any parser takes."""

from __future__ import annotations

import json
import math

import pytest

from clusterenv.cli.json_lines import json_line


def test_what_is_no_number_is_null_since_json_knows_no_nan() -> None:
    told = json_line({"a": [math.nan, 1.5], "b": {"c": -math.inf}, "d": (True, None, 3)})
    assert json.loads(told, parse_constant=pytest.fail) == {"a": [None, 1.5], "b": {"c": None}, "d": [True, None, 3]}
