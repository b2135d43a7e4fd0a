"""Settings survive a TOML file."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import tomli_w

from clusterenv.cli.options import parse
from clusterenv.errors import ConfigError
from clusterenv.learners import catalog
from clusterenv.learners.common import toml
from clusterenv.learners.common.settings import from_table, to_table


@dataclass(frozen=True)
class Inner:
    kind: Literal["a", "b"] = "a"
    limit: float | None = None


@dataclass(frozen=True)
class Outer:
    count: int = 1
    rate: float = 0.5
    name: str = "x"
    on: bool = False
    sizes: tuple[int, ...] = (64, 64)
    inner: Inner = field(default_factory=Inner)


def test_there_and_back() -> None:
    settings = Outer(count=3, rate=1e-4, name="y z", on=True, sizes=(1, 2, 3), inner=Inner("b", 0.25))
    table = to_table(settings)
    assert table["sizes"] == [1, 2, 3]
    assert table["inner"] == {"kind": "b", "limit": 0.25}
    assert from_table(Outer, table) == settings


def test_none_is_left_out_and_what_is_not_named_has_its_default() -> None:
    assert to_table(Outer())["inner"] == {"kind": "a"}
    assert from_table(Outer, {"inner": {}}) == Outer()


@pytest.mark.parametrize("name", catalog.LEARNERS)
def test_none_of_every_setting_survives_a_file(name: str) -> None:
    settings = _without(catalog.find(name).config())
    assert from_table(type(settings), toml.loads(tomli_w.dumps(to_table(settings)))) == settings


def test_none_that_was_typed_survives_a_file() -> None:
    settings = parse(catalog.find("impact"), ["--rho", "None"]).settings
    again = from_table(type(settings), toml.loads(tomli_w.dumps(to_table(settings))))
    assert settings.rho is None
    assert again.rho is None


def test_a_text_that_says_none_stays_a_text() -> None:
    assert from_table(Outer, {"name": "None"}).name == "None"
    with pytest.raises(ConfigError, match="count='None' must be int"):
        from_table(Outer, {"count": "None"})


def _without(settings: Any) -> Any:
    """The same settings with None wherever the type allows it, in nested ones too."""
    hints = typing.get_type_hints(type(settings))
    values: dict[str, Any] = {}
    for part in dataclasses.fields(settings):
        value = getattr(settings, part.name)
        if type(None) in typing.get_args(hints[part.name]):
            values[part.name] = None
        elif dataclasses.is_dataclass(value):
            values[part.name] = _without(value)
    return dataclasses.replace(settings, **values)


def test_a_whole_number_is_a_number() -> None:
    rate = from_table(Outer, {"rate": 1}).rate
    assert rate == 1.0
    assert isinstance(rate, float)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"cuont": 1}, r"unknown setting in the file 'cuont'\. Did you mean 'count'\?"),
        ({"inner": {"limits": 1}}, r"unknown setting in inner 'limits'\. Did you mean 'limit'\?"),
        ({"count": "three"}, "count='three' must be int"),
        ({"count": True}, "count=True must be int"),
        ({"count": 1.5}, r"count=1\.5 must be int"),
        ({"count": 2**63}, r"count=9223372036854775808 must be more than -2\*\*63 and less"),
        ({"count": 16**4000}, r"count=a number of thousands of digits must be more than -2\*\*63"),
        ({"inner": {"limit": 10**400}}, r"inner.limit=10*\.\.\. must be float"),
        ({"on": 1}, "on=1 must be bool"),
        ({"inner": {"kind": "c"}}, "inner.kind='c' must be"),
        ({"inner": {"limit": "much"}}, "inner.limit='much' must be float"),
        ({"inner": 3}, "inner=3 must be Inner"),
        ({"sizes": [1, "two"]}, "sizes="),
        ({"sizes": 64}, "sizes=64 must be"),
    ],
)
def test_a_slip_is_told_with_its_place(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_table(Outer, table)
