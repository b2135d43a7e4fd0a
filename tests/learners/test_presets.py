"""The files with settings that work: each is sound, and says what came of it and by which command."""

from __future__ import annotations

import importlib.resources
import re
from typing import TYPE_CHECKING

import pytest

from clusterenv.cli.options import parse
from clusterenv.learners import catalog
from clusterenv.learners.common import presets, toml
from clusterenv.learners.common.settings import from_table, to_table

if TYPE_CHECKING:
    from clusterenv.learners.common.config import Mode

FOLDER = importlib.resources.files("clusterenv") / "presets"
# Names of files are ids without slashes; these are told apart by what the files say themselves.
FILES = sorted(file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.endswith(".toml"))


def env_id_of(name: str) -> str:
    """The environment in the first command of the file."""
    _, _, shown = name.partition("-")
    for _, env_id in re.findall(r"(--env-id) (\S+)", (FOLDER / f"{name}.toml").read_text()):
        if re.sub(r"[^A-Za-z0-9._-]", "-", env_id) == shown:
            return str(env_id)
    raise AssertionError(f"no command in {name} names its environment")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("mode", [None, "stream", "lock step"])
def test_presets_are_sound_and_survive_a_file(name: str, mode: Mode | None) -> None:
    entry, env_id = catalog.find(name.partition("-")[0]), env_id_of(name)
    config = entry.preset(env_id, mode)
    assert config.env_id == env_id
    assert from_table(entry.config, to_table(config)) == config
    assert mode is None or config.mode == mode


@pytest.mark.parametrize("name", FILES)
def test_presets_say_what_came_of_them(name: str) -> None:
    algorithm, env_id = name.partition("-")[0], env_id_of(name)
    results = toml.loads((FOLDER / f"{name}.toml").read_text())["result"]
    assert results, "a preset that was never tried is a guess"
    for result in results:
        assert len(result["returns"]) == len(result["seeds"]) >= 1
        words = result["command"].split()
        assert words[:3] == ["clusterenv", "train", algorithm]
        settings = parse(catalog.find(algorithm), words[3:]).settings
        assert (settings.env_id, settings.seed) == (env_id, result["seeds"][0])
        assert settings.total_steps >= result["steps"]
        early = settings.target_return is not None or "stopped" in result["remark"]
        whole = settings.total_steps - result["steps"] < settings.batch_size
        assert whole or early, "it is a result of other settings"


def test_an_environment_that_nobody_tried_gets_the_defaults() -> None:
    for entry in catalog.LEARNERS.values():
        assert entry.preset("Unheard-v0") == entry.config(env_id="Unheard-v0")


def test_an_id_that_no_file_can_be_named_after_gets_the_defaults() -> None:
    assert presets.find("ppo", "x" * 300) is None


def test_streams_of_ppo_have_shorter_batches_and_minibatches_of_the_same_size() -> None:
    entry = catalog.find("ppo")
    waiting, streaming = (entry.preset("LunarLander-v3", mode) for mode in ("lock step", "stream"))
    assert streaming.batch_size < waiting.batch_size
    each = [settings.batch_size // settings.minibatches for settings in (waiting, streaming)]  # type: ignore[attr-defined]
    assert each[0] == each[1]
