"""Errors: one test per class, a snapshot of each message, and the type of an environment's own exception kept."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
from typing import Any

import pytest
from gymnasium.error import ClosedEnvironmentError

from clusterenv import errors
from clusterenv.errors import EnvError, WorkerLost, WorkersMissing, unknown

TREE = {
    "ActionError": ("ConfigError",),
    "ActionTypeError": ("ActionError", "ConfigTypeError"),
    "ClusterEnvError": ("Exception",),
    "ConfigError": ("ClusterEnvError", "ValueError"),
    "ConfigTypeError": ("ConfigError", "TypeError"),
    "EnvError": ("ClusterEnvError",),
    "GivenUp": ("LaunchError",),
    "LaunchError": ("ClusterEnvError", "RuntimeError"),
    "PolicyError": ("ClusterEnvError", "RuntimeError"),
    "ProtocolError": ("ClusterEnvError", "RuntimeError"),
    "ResultError": ("ClusterEnvError", "TypeError"),
    "SpaceMismatch": ("ConfigError", "RuntimeError"),
    "WeightsCorrupt": ("ClusterEnvError", "RuntimeError"),
    "WeightsError": ("ConfigError",),
    "WorkerLost": ("ClusterEnvError", "RuntimeError"),
    "WorkersMissing": ("LaunchError",),
}


def classes() -> dict[str, type[BaseException]]:
    return {name: value for name, value in vars(errors).items() if isinstance(value, type)}


def test_the_tree_is_the_one_that_is_drawn() -> None:
    assert {name: tuple(base.__name__ for base in kind.__bases__) for name, kind in classes().items()} == TREE


@pytest.mark.parametrize("name", TREE)
def test_the_drawing_names_every_class(name: str) -> None:
    assert name in (errors.__doc__ or "")
    assert classes()[name].__doc__


@pytest.mark.parametrize("name", sorted(set(TREE) - {"EnvError", "WorkerLost", "WorkersMissing"}))
def test_a_plain_error_says_what_it_is_told(name: str) -> None:
    error = classes()[name]("num_envs=0 must be at least 1.")
    assert str(error) == "num_envs=0 must be at least 1."
    assert isinstance(error, errors.ClusterEnvError)


def test_workers_missing() -> None:
    error = WorkersMissing(3, 4, 59.7, "Worker 2: no answer.")
    assert str(error) == "3 of 4 workers were ready within 60 s. Worker 2: no answer."
    assert (error.arrived, error.expected, error.waited_s) == (3, 4, 59.7)


def test_worker_lost_in_a_known_slot() -> None:
    error = WorkerLost(1, range(2, 4), "its process was ended by signal 9 (SIGKILL)", slot=3, seed=17, step=812)
    assert str(error) == (
        "worker 1 (slots 2-3) is lost: its process was ended by signal 9 (SIGKILL). "
        "It was in slot 3 (seed 17, step 812). "
        'Call reset() to go on with a fresh worker, or pass on_loss="restart" to have that done for you.'
    )
    assert (error.worker, error.slots, error.cause) == (1, range(2, 4), "its process was ended by signal 9 (SIGKILL)")
    assert (error.slot, error.seed, error.step) == (3, 17, 812)


def test_worker_lost_between_slots() -> None:
    error = WorkerLost(0, range(1), "no answer to a step within 60 s")
    assert str(error).startswith("worker 0 (slots 0-0) is lost: no answer to a step within 60 s. Call reset()")
    assert (error.slot, error.seed, error.step) == (None, None, None)


def env_error(cause: BaseException) -> EnvError:
    return EnvError.of(cause, slot=5, doing="step", seed=7, step=3, remote_traceback="Traceback ...\n  line 1\n")


def test_env_error() -> None:
    error = env_error(ValueError("no such move"))
    assert str(error) == (
        "the environment in slot 5 (seed 7, step 3) raised in step: ValueError: no such move\nTraceback ...\n  line 1"
    )
    assert (error.slot, error.seed, error.step) == (5, 7, 3)
    assert error.remote_traceback == "Traceback ...\n  line 1\n"


class Custom(Exception):
    """A user's exception with a field."""


class Picky(Exception):
    """A constructor that takes two arguments."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


class Keyword(Exception):
    """A constructor that takes no message."""

    def __init__(self, *, code: int) -> None:
        super().__init__(code)


class Strict(Exception):
    """A constructor that looks at its argument."""

    def __init__(self, number: int) -> None:
        super().__init__(number + 1)


class Slotted(Exception):
    """Fields in slots."""

    __slots__ = ("extra",)


class Silent(Exception):
    """Says nothing of its own accord."""

    def __str__(self) -> str:
        return ""


KEPT = [
    ValueError("x"),
    KeyError("x"),
    IndexError(3),
    ZeroDivisionError(),
    AssertionError("x"),
    RuntimeError("a", "b"),
    OSError(2, "No such file"),
    FileNotFoundError(2, "No such file", "a.txt"),
    TimeoutError("late"),
    MemoryError(),
    RecursionError("deep"),
    ImportError("x", name="mod"),
    SyntaxError("bad", ("f.py", 1, 1, "x", 1, 2)),
    ArithmeticError("x"),
    Custom("x"),
    Slotted("x"),
    Silent(),
    errors.ConfigError("x"),
]
# Constructors with their own ideas: the message is kept and the type is named in it.
ODD = [
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    Picky(3, "no"),
    Keyword(code=3),
    Strict(3),
    subprocess.CalledProcessError(2, ["ls"]),
]


@pytest.mark.parametrize("cause", KEPT, ids=lambda cause: type(cause).__name__)
def test_the_type_of_an_ordinary_exception_is_kept(cause: Exception) -> None:
    error = env_error(cause)
    assert isinstance(error, type(cause))
    assert isinstance(error, EnvError)


@pytest.mark.parametrize("cause", [*KEPT, *ODD], ids=lambda cause: type(cause).__name__)
def test_any_exception_becomes_an_env_error_with_all_facts(cause: Exception) -> None:
    error = env_error(cause)
    assert isinstance(error, EnvError)
    assert str(error).startswith(
        f"the environment in slot 5 (seed 7, step 3) raised in step: {type(cause).__name__}: {cause}"
    )
    assert (error.slot, error.seed, error.step, error.remote_traceback[:9]) == (5, 7, 3, "Traceback")
    assert type(error).__name__ == "EnvError"


@pytest.mark.parametrize("cause", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_an_exit_never_becomes_one(cause: BaseException) -> None:
    assert type(env_error(cause)) is EnvError


@pytest.mark.parametrize(
    "kind", [StopIteration, StopAsyncIteration, multiprocessing.TimeoutError, ClosedEnvironmentError]
)
def test_no_environment_can_end_a_loop_or_seem_late_or_closed(kind: type[Exception]) -> None:
    class Own(kind):  # type: ignore[valid-type, misc]
        pass

    for cause in (kind("its own"), Own("its own")):
        error = env_error(cause)
        assert not isinstance(error, kind), "callers would take it for ours"
        assert f"{type(cause).__name__}: its own" in str(error)


def test_an_env_error_of_an_env_error_is_one() -> None:
    assert type(env_error(env_error(ValueError("inner")))) is EnvError


class Mute(Exception):
    """Cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_printed_is_told_all_the_same() -> None:
    assert "Mute" in str(env_error(Mute()))


TRAVELLERS: list[Any] = [
    errors.ConfigError("num_envs=0"),
    errors.ResultError("no"),
    WorkersMissing(3, 4, 60.0, "hint"),
    WorkerLost(1, range(2, 4), "gone", slot=3, seed=17, step=812),
    env_error(ValueError("no such move")),
]


@pytest.mark.parametrize("error", TRAVELLERS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: errors.ClusterEnvError) -> None:
    # Errors cross processes in process pools, in Ray and in test runners; one that cannot be loaded breaks those.
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy).__name__ == type(error).__name__
    assert isinstance(copy, errors.ClusterEnvError)
    assert str(copy) == str(error)
    assert getattr(copy, "slot", None) == getattr(error, "slot", None)


def test_unknown_suggests_the_nearest_name() -> None:
    assert unknown("cluster", "locl", ["local", "inproc"]) == (
        "unknown cluster 'locl'. Did you mean 'local'? Known: inproc, local."
    )


def test_unknown_without_a_near_name_lists_them() -> None:
    assert unknown("cluster", "k8s", ["local", "inproc"]) == "unknown cluster 'k8s'. Known: inproc, local."


def test_unknown_quotes_a_long_name_in_part() -> None:
    assert len(unknown("cluster", "x" * 100_000, ["local"])) < 200
