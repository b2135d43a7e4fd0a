"""Optional libraries: the message has the line that installs them."""

from __future__ import annotations

import sys

import pytest

from clusterenv import extras
from clusterenv.errors import ConfigError


def test_a_module_that_is_there_is_returned() -> None:
    assert extras.load("json.decoder", extra="train", purpose="a test") is sys.modules["json.decoder"]


def test_a_missing_one_is_answered_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError) as caught:
        extras.load("wandb", extra="wandb", purpose="--track")
    assert str(caught.value) == "--track needs 'wandb'. Install it: pip install \"clusterenv[wandb]\""


def test_what_a_module_lacks_itself_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with open(f"{tmp_path}/half_there.py", "w") as file:
        file.write("import surely_not_installed")
    with pytest.raises(ConfigError, match="plotting needs 'surely_not_installed'"):
        extras.load("half_there", extra="train", purpose="plotting")
