"""The folder of a run: everything that it leaves behind, and everything needed to repeat or resume it.

    runs/CartPole-v1__ppo__1__20250102-150405/
      run.toml        the complete configuration, and the versions of the libraries
      metrics.csv     every number that was measured
      checkpoints/    the newest two
      .lock           held by the process that runs it
    runs/latest       a link to the newest run that has something to show

No environment variables are stored: on a cluster they hold secrets.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
import platform
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterenv import __version__
from clusterenv.errors import ConfigError, unknown
from clusterenv.learners.common import toml

if TYPE_CHECKING:
    import datetime
    from collections.abc import Iterator

FORMAT = 1
_PARTS = ("format", "algorithm", "config", "versions")
_MAX_TITLE = 150  # characters; a folder's name may have 255, and seed, time and number are in it too
_MAX_BYTES = 1 << 20  # of a run.toml; ours have some thousand
_LIBRARIES = ("gymnasium", "numpy", "torch", "onnxruntime")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run keeps its files.

    Attributes:
        path: the folder.
    """

    path: pathlib.Path

    @classmethod
    def create(
        cls, root: str | os.PathLike[str], *, env_id: str, algorithm: str, seed: int, now: datetime.datetime
    ) -> RunFolder:
        """Make a fresh folder.

        Raises:
            ConfigError: none can be made there.
        """
        # "ALE/Pong-v5" and "module:Env-v0" are ids; a folder has neither slash nor colon.
        title = re.sub(r"[^A-Za-z0-9._-]", "-", env_id)[:_MAX_TITLE]
        name = f"{title}__{algorithm}__{seed}__{now:%Y%m%d-%H%M%S}"
        root = pathlib.Path(root)
        try:
            root.mkdir(parents=True, exist_ok=True)
            return cls(_fresh(root, name))
        except OSError as error:
            raise ConfigError(
                f"--runs {os.fspath(root)!r}: no folder can be made there: {error.strerror}. Name a folder of yours."
            ) from error

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """An existing folder.

        Raises:
            ConfigError: there is no run there.
        """
        folder = cls(pathlib.Path(path).resolve())
        if not folder.settings_file.is_file():
            raise ConfigError(
                f"{os.fspath(path)!r} is no run: it has no run.toml. Name a folder such as runs/latest, "
                "made by `clusterenv train`."
            )
        return folder

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out of the folder. The end of the process, in whatever way, lets them in again.

        Raises:
            ConfigError: another run uses it.
        """
        import fcntl  # not on every system, and only who writes needs it

        with (self.path / ".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"{self.path} is used by another run, which has not ended. Wait for it or stop it, or start one of "
                    "your own without --resume."
                ) from None
            except OSError:  # a file system without locks: better unprotected than not at all
                pass
            yield

    @property
    def settings_file(self) -> pathlib.Path:
        """run.toml."""
        return self.path / "run.toml"

    @property
    def metrics_file(self) -> pathlib.Path:
        """metrics.csv."""
        return self.path / "metrics.csv"

    @property
    def checkpoints(self) -> pathlib.Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def has_begun(self) -> bool:
        """Whether there is something to look at or to go on from: a row of metrics, or a checkpoint."""
        if self.checkpoints.is_dir():
            return True
        with contextlib.suppress(FileNotFoundError), self.metrics_file.open("rb") as file:
            file.readline()  # the names of the columns
            return file.readline() != b""
        return False

    def point_latest(self) -> None:
        """Let `latest` point to this run."""
        link, aside = self.path.parent / "latest", self.path.parent / f".latest.{os.getpid()}"
        # A convenience: a file system without links, or a run beside this one, must not stop the run.
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
            aside.symlink_to(self.path.name)
            os.replace(aside, link)

    def discard(self) -> None:
        """Remove the folder with all that is in it, as far as that can be done."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write(self, algorithm: str, config: dict[str, Any]) -> None:
        """Write run.toml: aside, then put in place."""
        import tomli_w

        content = {"format": FORMAT, "algorithm": algorithm, "config": config, "versions": _versions()}
        aside = self.path / ".run.toml.new"
        aside.write_text(tomli_w.dumps(content), encoding="utf-8")
        os.replace(aside, self.settings_file)

    def read(self) -> tuple[str, dict[str, Any]]:
        """The algorithm and its configuration, as `write` got them."""
        return read_settings(self.settings_file)


def _fresh(root: pathlib.Path, name: str) -> pathlib.Path:
    """A folder that was not there, with a number behind its name if another run of the same second has that name."""
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def read_settings(path: str | os.PathLike[str]) -> tuple[str, dict[str, Any]]:
    """The algorithm and the configuration of a run.toml.

    Raises:
        ConfigError: it cannot be read, or is not one.
    """
    try:
        content = toml.loads(_text(pathlib.Path(path)))
    except (OSError, ValueError, RecursionError) as error:  # a ValueError: `_text`, no UTF-8, no TOML, a long number
        raise ConfigError(f"{os.fspath(path)} cannot be read: {error}.") from error
    file = os.fspath(path)
    if content.get("format") != FORMAT:
        raise ConfigError(
            f"{file} has format={content.get('format')!r}; this version reads {FORMAT}. A file of your own needs the "
            f'lines `format = {FORMAT}` and `algorithm = "ppo"` (or another), then a table [config] with the settings.'
        )
    algorithm, config = content.get("algorithm"), content.get("config", {})
    if not isinstance(algorithm, str) or not isinstance(config, dict):
        raise ConfigError(f"{file} must have a text for its algorithm and a table for its config.")
    for name in content:
        if name not in _PARTS:
            raise ConfigError(f"{unknown(f'part of {file}', name, _PARTS)} Settings belong into the table [config].")
    return algorithm, config


def _text(path: pathlib.Path) -> str:
    """What a file holds. A pipe may never say anything, and a device never end."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no ordinary file, such as runs/latest/run.toml")
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES:,} bytes, and so is no run.toml")
    return content.decode()


def _versions() -> dict[str, str]:
    versions = {"clusterenv": __version__, "python": platform.python_version()}
    for library in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return versions
