"""Infos: from single dictionaries to the batch, in the dialect that the consumer reads.

"gymnasium" is what Gymnasium 1.x vector environments return. "gymnasium-0.29" is what scripts written for Gymnasium
0.29 read (CleanRL's among them): `final_info` and `final_observation` are object arrays with a dictionary, or an
observation, where an episode has ended and None elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.errors import ResultError
from clusterenv.worker.report import failure_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from gymnasium.vector import VectorEnv

    from clusterenv.worker.report import Failure, Report

    # What makes the infos that a user gets out of what was reported.
    InfosOf = Callable[[VectorEnv[Any, Any, Any], Report, str], dict[Any, Any]]

OLD_DIALECT = "gymnasium-0.29"
DIALECTS = ("gymnasium", OLD_DIALECT)

# What is nested deeper than this is taken for something that contains itself; other hosts send no more, either.
_MAX_DEPTH = 100
# How many keys on the way there are shown.
_MAX_KEYS = 8


def batch_infos(envs: VectorEnv[Any, Any, Any], report: Report, dialect: str) -> dict[str, Any]:
    """The infos of a whole batch. `envs` lends Gymnasium's own rule for adding one info to a batch."""
    # In the order of the slots: the first slot that has a key decides its dtype, as in SyncVectorEnv.
    entries = sorted(report.infos, key=lambda entry: entry[0])
    infos: dict[str, Any] = {}
    for slot, info in entries:
        if dialect == OLD_DIALECT and "final_info" in info:
            _add_final_as_029(infos, slot, info, envs.num_envs)
        else:
            infos = _added(envs, infos, info, slot)
    for slots, batch in report.block_infos:
        _merge_batch(infos, batch, slots, envs.num_envs)
    return infos


def _added(envs: VectorEnv[Any, Any, Any], infos: dict[str, Any], info: dict[str, Any], slot: int) -> dict[str, Any]:
    try:
        return envs._add_info(infos, info, slot)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:  # as SyncVectorEnv raises, with more words
        raise type(error)(
            f"the info of slot {slot}, {str(info)[:200]}, does not fit beside those of other slots: {error}. "
            "A key needs the same kind and shape of value in every environment."
        ) from error


def endless_info(report: Report, doing: str) -> Failure | None:
    """The first slot whose info has no end, or is nested too deep, as a failure that names its keys."""
    of_blocks = [(int(slots[0]), batch) for slots, batch in report.block_infos]
    for slot, info in [*report.infos, *of_blocks]:
        keys = _way_to_endless(info, ())
        if keys is not None:
            way = "".join(f"[{key!r}]" for key in keys[1:_MAX_KEYS]) + "..." * (len(keys) > _MAX_KEYS)
            error = ResultError(
                f"the value of info key {keys[0]!r} cannot be batched: something that is nested more than {_MAX_DEPTH} "
                f"deep or within itself{' at ' * bool(way)}{way}; make it plain data, or leave it out"
            )
            return failure_of(error, slot, doing)
    return None


def _way_to_endless(value: dict[str, Any], above: tuple[dict[str, Any], ...]) -> list[str] | None:
    """The keys that lead to the first dictionary which is within itself, or too deep. None if there is none."""
    if any(value is outer for outer in above) or len(above) > _MAX_DEPTH:
        return []
    for key, item in value.items():
        way = _way_to_endless(item, (*above, value)) if isinstance(item, dict) else None
        if way is not None:
            return [key, *way]
    return None


def infos_by_slot(envs: VectorEnv[Any, Any, Any], report: Report, dialect: str) -> dict[int, list[dict[str, Any]]]:
    """The infos of each slot as its environment returned them, in that order: for who wants no batch.

    A batch has one dtype and one shape for each key, so what comes out of it may be something else than what went in.
    This takes the arguments of `batch_infos`, in whose place it is used, and needs the report alone.
    """
    listed: dict[int, list[dict[str, Any]]] = {}
    for slot, info in report.infos:
        listed.setdefault(slot, []).append(info)
    for slots, batch in report.block_infos:
        rows: dict[str, Any] = {}
        _merge_batch(rows, batch, np.arange(len(slots)), len(slots))  # gives every key a mask
        for row, slot in enumerate(slots.tolist()):
            listed.setdefault(slot, []).append(_row_of(rows, row))
    return listed


def select(infos: dict[str, Any], slots: npt.NDArray[np.intp]) -> dict[str, Any]:
    """The rows of these slots, in their order."""
    return {key: select(value, slots) if isinstance(value, dict) else value[slots] for key, value in infos.items()}


def rows_of(infos: dict[str, Any], rows: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Some rows of infos that a vectorised block has batched; what is not one value per row is kept whole."""
    part = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            part[key] = rows_of(value, rows)
        else:
            per_row = isinstance(value, np.ndarray) and value.shape[:1] == rows.shape
            part[key] = value[rows] if per_row else value
    return part


def _row_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """The info of one row, taken out of a batch with its masks."""
    info = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if mask is not None and mask[row]:
            info[key] = _row_of(value, row) if isinstance(value, dict) else value[row]
    return info


def _add_final_as_029(infos: dict[str, Any], slot: int, info: dict[str, Any], count: int) -> None:
    for key, value in (("final_observation", info["final_obs"]), ("final_info", info["final_info"])):
        if key not in infos:
            infos[key] = np.full(count, None, dtype=object)
            infos[f"_{key}"] = np.zeros(count, dtype=np.bool_)
        infos[key][slot] = value
        infos[f"_{key}"][slot] = True


def _merge_batch(into: dict[str, Any], batch: dict[str, Any], slots: npt.NDArray[Any], count: int) -> None:
    """Put the infos that a vectorised block has batched itself into the rows of the whole batch."""
    for key, value in batch.items():
        if key.startswith("_") and key[1:] in batch:
            continue  # the mask of another key, taken together with it
        mask = np.asarray(batch.get(f"_{key}", np.ones(len(slots), dtype=np.bool_)))
        if isinstance(value, dict):
            _merge_batch(into.setdefault(key, {}), value, slots, count)
        else:
            rows = np.asarray(value)
            if rows.shape[:1] != slots.shape:
                rows = _objects(value, len(slots))
            if key not in into:
                into[key] = np.full(count, None, object) if rows.dtype == object else _zeros(count, rows)
            into[key][slots] = rows
        into.setdefault(f"_{key}", np.zeros(count, dtype=np.bool_))[slots] = mask


def _zeros(count: int, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.zeros((count, *rows.shape[1:]), dtype=rows.dtype)


def _objects(value: Any, count: int) -> npt.NDArray[Any]:
    """Something that is not one value per row: every row gets it whole."""
    rows = np.empty(count, dtype=object)
    for row in range(count):
        rows[row] = value
    return rows
