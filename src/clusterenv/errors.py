"""Errors.

Each says what was wrong, with the value, what was expected, and what to do.

    ClusterEnvError
      ConfigError          the request itself is wrong; nothing was started or changed   (also a ValueError)
        ConfigTypeError    the same, and the type was the matter                         (also a TypeError)
        SpaceMismatch      the environments of one batch have different spaces           (also a RuntimeError)
        ActionError        the actions do not fit the action space
          ActionTypeError  they are not even a batch                                     (also a TypeError)
        WeightsError       the weights are not finite, or not those of the attached policy
      LaunchError          a worker could not be started
        WorkersMissing     some did not report in time
        GivenUp            the head has given this node up, and takes a fresh one in its place
      WorkerLost           a worker died, hung or was cut off                            (also a RuntimeError)
      EnvError             an environment raised; its own type and traceback are kept
      ResultError          a result could not travel back to the head
      PolicyError          a policy failed on a worker                                   (also a RuntimeError)
      WeightsCorrupt       weights arrived that cannot be used                           (also a RuntimeError)
      ProtocolError        a peer sent what the protocol does not allow                  (also a RuntimeError)

Calls in the wrong order raise Gymnasium's own errors: `ClosedEnvironmentError`, `AlreadyPendingCallError`,
`NoAsyncCallError` and `ResetNeeded`.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


class ClusterEnvError(Exception):
    """Anything that ClusterEnv raises by itself. It can be pickled, whatever its constructor takes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


class ConfigError(ClusterEnvError, ValueError):
    """The request itself is wrong. Nothing was started or changed."""


class ConfigTypeError(ConfigError, TypeError):
    """The request itself is wrong: a value has the wrong type."""


class SpaceMismatch(ConfigError, RuntimeError):
    """The environments of one batch do not share their spaces."""


class ActionError(ConfigError):
    """The actions do not fit the action space. No environment was stepped."""


class ActionTypeError(ActionError, ConfigTypeError):
    """One action was given in place of a batch of them."""


class WeightsError(ConfigError):
    """The weights are not finite, or not those of the attached policy. Nothing was published."""


class LaunchError(ClusterEnvError, RuntimeError):
    """A worker could not be started."""


class GivenUp(LaunchError):
    """The head has given this node up, and takes a fresh one in its place.

    Attributes:
        exit_code: of the node program; whoever started it may start it again.
    """

    exit_code: ClassVar[int] = 75


class WorkersMissing(LaunchError):
    """Some workers did not report in time.

    Attributes:
        arrived: how many workers reported.
        expected: how many were started.
        waited_s: for how long we waited.
    """

    def __init__(self, arrived: int, expected: int, waited_s: float, hint: str, *, what: str = "workers") -> None:
        super().__init__(f"{arrived} of {expected} {what} were ready within {waited_s:.0f} s. {hint}")
        self.arrived, self.expected, self.waited_s = arrived, expected, waited_s


class WorkerLost(ClusterEnvError, RuntimeError):
    """A worker died, hung or was cut off.

    Attributes:
        worker: index of the worker.
        slots: the slots whose environments went with it.
        cause: what is known about the end, for people.
        slot: the slot that was being stepped, if known.
        seed: the seed that slot was last reset with, if any.
        step: how many steps the slot had taken since that reset, if known.

    With `again` it was replaced before, more than once, and is not any more. With `replaced` it is, and only the call
    is lost.
    """

    def __init__(
        self,
        worker: int,
        slots: range,
        cause: str,
        *,
        slot: int | None = None,
        seed: int | None = None,
        step: int | None = None,
        again: bool = False,
        replaced: bool = False,
    ) -> None:
        where = "" if slot is None else f" It was in slot {slot} (seed {seed}, step {step})."
        advice = 'Call reset() to go on with a fresh worker, or pass on_loss="restart" to have that done for you.'
        if again:
            advice = "It was lost again and again without getting anywhere. Find out why, then call reset()."
        elif replaced:
            advice = "A fresh one takes its place: go on with step(), which tells whose episodes were cut, or reset()."
        super().__init__(f"worker {worker} (slots {slots.start}-{slots.stop - 1}) is lost: {cause}.{where} {advice}")
        self.worker, self.slots, self.cause = worker, slots, cause
        self.slot, self.seed, self.step = slot, seed, step


class EnvError(ClusterEnvError):
    """An environment raised.

    The error is also an instance of the environment's own exception type where Python allows it, so
    `except ValueError` goes on working when an environment raised `ValueError`.

    Attributes:
        slot: the slot of the environment.
        seed: the seed it was last reset with, if any.
        step: how many steps it had taken since that reset, if known.
        remote_traceback: where it raised, as text.
    """

    slot: int
    seed: int | None
    step: int | None
    remote_traceback: str

    @classmethod
    def of(
        cls,
        cause: BaseException,
        *,
        slot: int,
        doing: str,
        seed: int | None,
        step: int | None,
        remote_traceback: str,
        again: bool = False,
    ) -> EnvError:
        """Build the error for an exception that an environment raised.

        With `again` it was replaced before, more than once, and is not any more.
        """
        often = " again and again, in fresh environments too" if again else ""
        message = (
            f"the environment in slot {slot} (seed {seed}, step {step}) raised in {doing}{often}: "
            f"{type(cause).__name__}: {words_of(cause)}\n{remote_traceback.rstrip()}"
        )
        error = _env_error(type(cause), message)
        error.slot, error.seed, error.step = slot, seed, step
        error.remote_traceback = remote_traceback
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt_env_error, (getattr(self, "cause_type", None), self.message, self.__dict__)

    @property
    def message(self) -> str:
        """What the error says."""
        return str(self.args[0]) if self.args else ""


class ResultError(ClusterEnvError, TypeError):
    """A result, or an argument, cannot travel between the head and a worker."""


class ProtocolError(ClusterEnvError, RuntimeError):
    """A peer sent what the protocol does not allow."""


class PolicyError(ClusterEnvError, RuntimeError):
    """A policy could not be set up on a worker, or failed there; the remote traceback is in the message."""


class WeightsCorrupt(ClusterEnvError, RuntimeError):
    """Weights arrived that cannot be used: damaged, of another layout, older, or a difference to unknown ones."""


def words_of(error: BaseException) -> str:
    """What an exception says, whatever it does when asked."""
    try:
        return str(error)
    except Exception:  # an exception whose __str__ raises
        return "(it cannot be printed)"


def named(error: BaseException) -> str:
    """The type and the words of an error, for a message about it.

    Example:
        >>> named(KeyError("gravity"))
        "KeyError: 'gravity'"
    """
    return f"{type(error).__name__}: {words_of(error)}"


# By name: to import them would make whoever only wants our errors wait for Gymnasium.
_MISTAKABLE = {
    "builtins.StopIteration",
    "builtins.StopAsyncIteration",
    "multiprocessing.context.TimeoutError",
    "gymnasium.error.ClosedEnvironmentError",
}

_env_error_types: dict[type[BaseException], type[EnvError]] = {}


def _env_error_type(kind: type[BaseException]) -> type[EnvError]:
    """EnvError and `kind` in one, so that `except kind` goes on working."""

    def message(self: EnvError) -> str:
        return self.message

    if kind not in _env_error_types:
        members = {"__str__": message, "__module__": __name__, "cause_type": kind}
        _env_error_types[kind] = type("EnvError", (EnvError, kind), members)
    return _env_error_types[kind]


def _is_mistakable(kind: type[BaseException]) -> bool:
    """Whether callers would take it for the end of a loop, a call still under way, or a batch that was closed."""
    return not _MISTAKABLE.isdisjoint(f"{each.__module__}.{each.__name__}" for each in kind.__mro__)


def _env_error(kind: type[BaseException] | None, message: str) -> EnvError:
    """An EnvError that is also an instance of `kind`, where the two can be combined."""
    if kind is None or issubclass(kind, EnvError) or not issubclass(kind, Exception) or _is_mistakable(kind):
        return EnvError(message)
    try:
        error = _env_error_type(kind)(message)
    except Exception:  # a constructor with its own ideas: the message matters more than the type
        return EnvError(message)
    return error if error.args == (message,) else EnvError(message)


def _rebuilt(kind: type[ClusterEnvError], args: tuple[Any, ...], state: dict[str, Any]) -> ClusterEnvError:
    error = kind.__new__(kind)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


def _rebuilt_env_error(kind: type[BaseException] | None, message: str, state: dict[str, Any]) -> EnvError:
    error = _env_error(kind, message)
    error.__dict__.update(state)
    return error


def unknown(what: str, got: str, known: Iterable[str]) -> str:
    """The message for a name that we do not know, with the nearest that we do.

    Example:
        >>> unknown("cluster", "locl", ["inproc", "local"])
        "unknown cluster 'locl'. Did you mean 'local'? Known: inproc, local."
    """
    names = sorted(known)
    return f"unknown {what} {got[:80]!r}.{meant(got, names)} Known: {', '.join(names)}."


def meant(got: str, known: Iterable[str]) -> str:
    """The end of a message about a name: a question for the nearest that we know, or nothing if none is near.

    Example:
        >>> meant("lock-step", ["lock step", "stream"])
        " Did you mean 'lock step'?"
    """
    near = difflib.get_close_matches(got, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
