"""Infos that nobody reads do not travel."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from clusterenv.errors import ConfigError
from clusterenv.wire.envs import recipe_from_data, recipe_to_data
from clusterenv.wrappers import KeepInfos


class Talker(gymnasium.Env[Any, Any]):
    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 0, {"kept": options, "dropped": seed}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return 1, 2.0, True, False, {"dropped": 1} if action else {"kept": 2, "dropped": 3}


def test_only_what_is_named_is_kept() -> None:
    env = KeepInfos(Talker(), keep=("kept",))
    assert env.reset(seed=3, options={"a": 1}) == (0, {"kept": {"a": 1}})
    assert env.step(0) == (1, 2.0, True, False, {"kept": 2})
    assert env.step(1) == (1, 2.0, True, False, {})


def test_a_single_text_is_not_split_into_letters() -> None:
    with pytest.raises(ConfigError, match=r"keep='kept' must be several keys.*keep=\('kept',\)"):
        KeepInfos(Talker(), keep="kept")


def test_another_host_knows_it_by_name() -> None:
    import functools

    recipe = recipe_from_data(recipe_to_data("CartPole-v1", {}, [functools.partial(KeepInfos, keep=("a",))]), ())
    wrapped = recipe.wrappers[0](Talker())
    assert isinstance(wrapped, KeepInfos)
