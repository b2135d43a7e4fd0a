"""Exceptions on the wire: types that everybody has are kept, others are named, and none is made up."""

from __future__ import annotations

from typing import Any

import gymnasium.error
import pytest

from clusterenv.errors import PolicyError, ProtocolError, ResultError, WorkerLost
from clusterenv.wire.failures import error_from_data, error_to_data
from clusterenv.wire.plain import Codec

CODEC = Codec()


class OutOfFuel(ValueError):
    def __init__(self, litres: int, colour: str) -> None:
        super().__init__(f"{litres} l of {colour} left")
        self.litres = litres


class Plain(Exception):
    pass


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class NotAKey(KeyError):
    pass


def again(error: BaseException) -> Any:
    return CODEC.unpack(CODEC.pack(error))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        ValueError(),
        ValueError("bad", 3, {"x": (1, 2)}),
        KeyError(("a", 1)),
        Exception("plain"),
        ZeroDivisionError("division by zero"),
        FileNotFoundError(2, "no such file", "a.txt"),
        OSError(18, "cross-device", "a", None, "b"),
        OSError("only text"),
        UnicodeDecodeError("utf-8", b"abc\xff", 3, 4, "invalid"),
        SyntaxError("wrong", ("file.py", 3, 1, "x = ")),
        StopIteration(4),
        DeprecationWarning("old"),
        gymnasium.error.ResetNeeded("call reset first"),
        ResultError("cannot travel"),
        PolicyError("NaN"),
    ],
)
def test_types_that_everybody_has_are_kept(error: Exception) -> None:
    back = again(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OutOfFuel(3, "red"), ValueError, "OutOfFuel: 3 l of red left"),
        (Plain("bad"), RuntimeError, "Plain: bad"),
        (Silent(), RuntimeError, "Silent: (it cannot be printed)"),
        (NotAKey("x"), KeyError, "\"NotAKey: 'x'\""),
        (KeyboardInterrupt("now"), RuntimeError, "KeyboardInterrupt: now"),
        (SystemExit(3), RuntimeError, "SystemExit: 3"),
        (type("Coded", (UnicodeDecodeError,), {})("utf-8", b"a", 0, 1, "no"), RuntimeError, "Coded: 'utf-8' codec"),
        (WorkerLost(1, range(2, 4), "killed"), RuntimeError, "WorkerLost: worker 1 (slots 2-3) is lost: killed."),
    ],
)
def test_other_types_are_named(error: BaseException, kind: type[Exception], words: str) -> None:
    back = again(error)
    assert type(back) is kind
    assert str(back).startswith(words)


def test_arguments_that_are_not_plain_become_text() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    back = again(ValueError("bad", Odd()))
    assert type(back) is ValueError
    assert back.args == ("('bad', <odd>)",)


def test_half_characters_and_long_texts() -> None:
    assert str(again(Plain("a\ud800b"))) == "Plain: a?b"
    assert str(again(ValueError("a\ud800b"))) == "a\ud800b"
    back = again(ValueError("x" * 10**6))
    assert type(back) is ValueError
    assert len(str(back)) == 20_000


def test_an_error_within_an_error() -> None:
    back = again(ValueError("outer", KeyError("inner")))
    assert type(back.args[1]) is KeyError


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        ["ValueError", "ValueError", "bad"],
        ["SystemExit", "SystemExit", "", []],
        ["KeyboardInterrupt", "x", "", None],
        ["BaseException", "x", "", None],
        ["int", "x", "", None],
        ["os.system", "x", "", None],
        ["clusterenv.EnvError", "x", "", None],
        [3, "x", "", None],
        [["ValueError"], "x", "", None],
        ["ValueError", 3, "", None],
        ["ValueError", "x", b"", None],
        ["ValueError", "ValueError", "", 3],
        ["ValueError", "ValueError", "", "args"],
    ],
)
def test_what_is_no_exception(data: Any) -> None:
    with pytest.raises(ProtocolError):
        error_from_data(data)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("UnicodeDecodeError", ["utf-8", b"abc", 5, 2**62, "x"]),
        ("UnicodeDecodeError", ["utf-8", b"abc", -5, 1, "x"]),
        ("UnicodeEncodeError", ["utf-8", "abc", 2, 1, "x"]),
        ("UnicodeTranslateError", ["abc", 2**40, 2**41, "x"]),
        ("UnicodeTranslateError", ["abc", -9, 1, "x"]),
        ("UnicodeDecodeError", [1]),
    ],
)
def test_arguments_that_do_not_fit_leave_the_text(name: str, args: list[Any]) -> None:
    back = error_from_data([name, name, "words", args])
    assert type(back) is RuntimeError
    assert str(back) == f"{name}: words"


def test_the_nearest_base_is_found() -> None:
    class Mixed(Plain, LookupError):
        pass

    assert error_to_data(Mixed("x"))[:2] == ["LookupError", "Mixed"]


def test_a_type_that_takes_a_text_is_kept() -> None:
    back = error_from_data(["SyntaxError", "SyntaxError", "words", ["x", [1]]])
    assert type(back) is SyntaxError
    assert back.args == ("words",)
