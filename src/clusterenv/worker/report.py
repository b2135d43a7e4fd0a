"""What a block tells the head beside the rows of the arena: infos, failures, and observations that fit no array."""

from __future__ import annotations

import logging
import pathlib
import pickle
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle

from clusterenv.errors import ResultError, words_of
from clusterenv.worker.strays import end_if_forked

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from types import TracebackType

    import numpy.typing as npt

_logger = logging.getLogger(__name__)

_OURS = str(pathlib.Path(__file__).parent)

# An error text of megabytes helps nobody and would travel with every failure.
_MAX_TEXT = 20_000


class Failure(NamedTuple):
    """An environment raised.

    Attributes:
        slot: which one.
        doing: "step", "reset", "build", "close" or the name of the method called.
        error: the exception, or a stand-in if it cannot travel.
        traceback: where it was raised, as text.
        recovered: whether a fresh environment has taken its place.
        at: which step of a fragment it was, counted from 1; 0 if no policy played, or before its first step.
    """

    slot: int
    doing: str
    error: Exception
    traceback: str
    recovered: bool
    at: int = 0


@dataclass(slots=True)
class Report:
    """The side channel of one pass over a block.

    Attributes:
        infos: (slot, info) in the order in which they were made; a slot may appear twice.
        failures: environments that raised.
        observations: (slot, observation) where the space fits no array.
        block_infos: (slots, infos) of a vectorised block, which batches its infos by itself.
    """

    infos: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    observations: list[tuple[int, Any]] = field(default_factory=list)
    block_infos: list[tuple[npt.NDArray[Any], dict[str, Any]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.infos or self.failures or self.observations or self.block_infos)

    def extend(self, other: Report) -> None:
        """Add what another pass reported."""
        self.infos += other.infos
        self.failures += other.failures
        self.observations += other.observations
        self.block_infos += other.block_infos

    def about(self, slots: Container[int]) -> Report:
        """The part that is about these slots.

        Example:
            >>> Report(infos=[(0, {"a": 1}), (2, {"b": 2})]).about(range(2)).infos
            [(0, {'a': 1})]
        """
        return Report(
            [entry for entry in self.infos if entry[0] in slots],
            [failure for failure in self.failures if failure.slot in slots],
            [entry for entry in self.observations if entry[0] in slots],
            [entry for entry in self.block_infos if entry[0][0] in slots],
        )

    def forget(self, slots: Container[int]) -> None:
        """Drop what was reported of these slots.

        Example:
            >>> report = Report(infos=[(0, {"a": 1}), (2, {"b": 2})])
            >>> report.forget(range(2))
            >>> report.infos
            [(2, {'b': 2})]
        """
        self.infos = [entry for entry in self.infos if entry[0] not in slots]
        self.failures = [failure for failure in self.failures if failure.slot not in slots]
        self.observations = [entry for entry in self.observations if entry[0] not in slots]
        self.block_infos = [entry for entry in self.block_infos if entry[0][0] not in slots]


class EnvFailed(Exception):
    """An environment raised while it was built, or in a `call` or `set_attr`; carries the Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


def failure_of(error: Exception, slot: int, doing: str, *, recovered: bool = False) -> Failure:
    """Describe an exception so that it can travel."""
    end_if_forked(error)
    text = "".join(traceback.format_exception(type(error), error, _users_frames(error.__traceback__)))
    if len(text) > _MAX_TEXT:
        text = text[: _MAX_TEXT // 2] + "\n... (cut) ...\n" + text[-_MAX_TEXT // 2 :]
    return Failure(slot, doing, _portable(error), text, recovered)


def packable(report: Report, pack: Callable[[Any], bytes], doing: str = "step") -> Report:
    """The report without the infos that `pack` refuses, each turned into a failure that names its key and says why."""
    kept = Report(failures=report.failures)

    def keep(entries: list[Any], entry: Any, slot: int, words: str | None) -> None:
        if words is None:
            entries.append(entry)
        else:
            kept.failures.append(failure_of(ResultError(words), slot, doing))

    for told in report.infos:
        keep(kept.infos, told, told[0], _bad_info(told[1], pack))
    for batch in report.block_infos:
        keep(kept.block_infos, batch, int(batch[0][0]), _bad_info(batch[1], pack))
    for seen in report.observations:
        words = _refusal(seen[1], pack)
        keep(kept.observations, seen, seen[0], words and f"the observation {words}")
    return kept


def _bad_info(info: dict[str, Any], pack: Callable[[Any], bytes]) -> str | None:
    """Which key of an info `pack` refuses, and why. None if it takes all of it."""
    whole = _refusal(info, pack)
    if whole is None:
        return None
    found = ((key, _refusal(value, pack)) for key, value in info.items())
    # It may also be a key, not a value, that cannot travel.
    key, words = next(((key, words) for key, words in found if words), ("?", whole))
    return f"the value of info key {key!r} {words}"


def _refusal(value: object, pack: Callable[[Any], bytes]) -> str | None:
    try:
        pack(value)
    except ResultError as error:
        words = str(error)
        return words if "plain data" in words else f"{words}; make it plain data"
    return None


def _users_frames(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not ours; all of it if the error is ours."""
    first = frames
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_OURS):
        first = first.tb_next
    return first or frames


def _portable(error: Exception) -> Exception:
    """The exception without its frames, or a RuntimeError that speaks for it if it cannot be pickled there and back."""
    try:
        error = error.with_traceback(None)
        error.__cause__ = error.__context__ = None
        pickle.loads(cloudpickle.dumps(error))
        if len(str(error)) <= _MAX_TEXT:
            return error
    except Exception as problem:  # any constructor may fail here, in any way
        _logger.debug("an exception cannot travel: %r", problem)
    return RuntimeError(f"{type(error).__name__}: {words_of(error)[:_MAX_TEXT]}")
