"""Checkpoints: tensors and facts in one safetensors file, never half written, never loaded when damaged.

A file is written aside, forced to the disk and renamed, so a crash leaves the one before it untouched; that one is kept
until the next is in place. Nothing in it is code: there is no pickle.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from clusterenv.errors import WeightsCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

FORMAT = 1
_SUFFIX = ".safetensors"
_log = logging.getLogger(__name__)


class Checkpoint(NamedTuple):
    """What was saved.

    Attributes:
        tensors: by name.
        facts: anything that JSON holds: the step, the seed, the last returns.
    """

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run: a folder with the newest few.

    Args:
        folder: made when the first one is saved.
        keep: how many stay. At least two: the newest may be damaged by a failing disk.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder)
        ...     path = checkpoints.save(4096, {"weight": torch.ones(2)}, {"seed": 1})
        ...     path.name, checkpoints.load().facts["seed"]
        ('000000004096.safetensors', 1)
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        self.folder, self.keep = pathlib.Path(folder), max(2, keep)

    def paths(self) -> list[pathlib.Path]:
        """The files, oldest first."""
        return sorted(self.folder.glob(f"*{_SUFFIX}"))

    def save(self, global_step: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> pathlib.Path:
        """Write a checkpoint and drop those that are too old."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{global_step:012d}{_SUFFIX}"
        write(path, tensors, facts)
        # Those with a later step are damaged, if this run went on from before them: they must not take the place of
        # sound ones. And what a process that was killed has left half written goes, too.
        damaged = [other for other in self.paths() if other.name > path.name and _is_damaged(other)]
        earlier = [other for other in self.paths() if other.name <= path.name]
        for old in [*damaged, *earlier[: -self.keep], *self.folder.glob(f".*{_SUFFIX}.new")]:
            old.unlink(missing_ok=True)
        return path

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is sound, or None if none was ever saved.

        Raises:
            WeightsCorrupt: there are some, and every one is damaged.
        """
        damaged: list[WeightsCorrupt] = []
        for path in reversed(self.paths()):
            try:
                found = read(path)
            except WeightsCorrupt as error:
                damaged.append(error)
                continue
            for each in damaged:
                _log.warning("%s %s is used in its place.", each, path.name)
            return found
        if damaged:
            told = " ".join(map(str, damaged))
            raise WeightsCorrupt(f"{told} Put one back from a copy of {self.folder}, or begin a new run.") from damaged[
                0
            ]
        return None


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write one file: aside, forced to the disk, then put in place."""
    path = pathlib.Path(path)
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(dict(facts), sort_keys=True)
    content = save(ready, {"format": str(FORMAT), "facts": text, "hash": _hash(ready, text)})
    aside = path.with_name(f".{path.name}.new")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    # The new name is on the disk only once its folder is.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_damaged(path: pathlib.Path) -> bool:
    try:
        read(path)
    except WeightsCorrupt:
        return True
    return False


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """Read one file.

    Raises:
        WeightsCorrupt: it is damaged, or not a checkpoint that this version can read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            # Copies: the file is mapped, and may be replaced while the tensors live.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (no mapping)
            about = file.metadata() or {}
    except (SafetensorError, OSError, TypeError, ValueError, RuntimeError) as error:  # torch has its own for odd shapes
        raise WeightsCorrupt(f"the checkpoint {os.fspath(path)} cannot be read: {error}.") from error
    if about.get("format") != str(FORMAT):
        raise WeightsCorrupt(
            f"the checkpoint {os.fspath(path)} has format {about.get('format')!r}; this version reads {FORMAT}."
        )
    text = about.get("facts", "")
    if about.get("hash") != _hash(tensors, text):
        raise WeightsCorrupt(f"the checkpoint {os.fspath(path)} is damaged: its content does not have its hash.")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise WeightsCorrupt(f"the checkpoint {os.fspath(path)} has facts that cannot be read.")
    return Checkpoint(tensors, facts)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's memory by name, "<parameter>/<what>". Learning rates and the like are the run's to set."""
    state = optimizer.state_dict()["state"]
    return {
        f"{index}/{what}": torch.as_tensor(value) for index, entry in state.items() for what, value in entry.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Give an optimiser the memory that `optimizer_tensors` told."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, what = name.partition("/")
        state.setdefault(int(index), {})[what] = tensor.clone()  # the optimiser writes into what it is given
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _hash(tensors: Mapping[str, Tensor], text: str) -> str:
    state = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        state.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()
