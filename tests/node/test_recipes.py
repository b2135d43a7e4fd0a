"""Orders to build environments: names that this host knows become environments, and nothing else does."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

from clusterenv.errors import ConfigError, ProtocolError
from clusterenv.node.recipes import builders_of
from tests.node.worlds import COUNTING

IMPORTS = ("tests.node.worlds",)
BLOCKS = [range(4, 6), range(6, 7)]


def order(recipes: Any, of_slot: Any, mode: Any = AutoresetMode.NEXT_STEP) -> tuple[Any, ...]:
    return recipes, of_slot, mode, True


def recipe(slot: int, *wrappers: Any) -> list[Any]:
    return [COUNTING, {"slot": slot}, list(wrappers)]


def test_each_slot_gets_its_own_environment() -> None:
    limit = ["gymnasium.wrappers.common:TimeLimit", [], {"max_episode_steps": 2}]
    builders = builders_of(order([recipe(40), recipe(50, limit)], [0, 1, 0]), BLOCKS, IMPORTS)
    assert len(builders) == 2
    # As on a node: the workers get the builders, and have imported nothing by themselves.
    blocks = [pickle.loads(cloudpickle.dumps(build))() for build in builders]
    assert [block.describe().slots for block in blocks] == BLOCKS
    assert blocks[0].call([0, 1], "slot", (), {}) == [40, 50]
    assert blocks[1].call([0], "slot", (), {}) == [40]
    assert [TimeLimit.__name__ in each for each in blocks[0].call([0, 1], "__str__", (), {})] == [False, True]
    for block in blocks:
        block.close()


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "a number": (7, ProtocolError, "in 4 parts, not as 7"),
    "nothing": (None, ProtocolError, "in 4 parts, not as None"),
    "too few parts": (([], []), ProtocolError, "in 4 parts"),
    "a recipe that is not there": (order([recipe(0)], [0, 1, 0]), ProtocolError, "has 1 recipes, and asks for others"),
    "a slot in words": (order([recipe(0)], ["a", 0, 0]), ProtocolError, "has 1 recipes, and asks for others"),
    "a slot below nothing": (order([recipe(0)], [0, 0, -1]), ProtocolError, "has 1 recipes, and asks for others"),
    "a number for the slots": (order([recipe(0)], 3), ProtocolError, "a list of recipes"),
    "a number for the recipes": (order(1, [0] * 3), ProtocolError, "a list of recipes"),
    "too few slots": (order([recipe(0)], [0, 0]), ProtocolError, "is for 2 slots, not for 3"),
    "too many slots": (order([recipe(0)], [0] * 4), ProtocolError, "is for 4 slots, not for 3"),
    "a mode in words": (order([recipe(0)], [0] * 3, "NextStep"), ProtocolError, "autoreset mode 'NextStep'"),
    "rebuild in words": (([recipe(0)], [0] * 3, AutoresetMode.NEXT_STEP, "no"), ProtocolError, "rebuild='no'"),
    "a recipe that is none": (order([5], [0] * 3), ProtocolError, "recipe"),
    "an environment that nobody has": (order([["No-v0", {}, []]], [0] * 3), ConfigError, "does not know"),
    "a module that is not allowed": (order([["os:A-v0", {}, []]], [0] * 3), ConfigError, "not told to import"),
    "arguments that are none": (order([[COUNTING, [1], []]], [0] * 3), ProtocolError, "keyword arguments"),
    "a wrapper of the system": (order([recipe(0, ["os:system", [], {}])], [0] * 3), ConfigError, "not told to import"),
}


@pytest.mark.parametrize(("data", "kind", "says"), BAD.values(), ids=BAD.keys())
def test_a_bad_order_is_refused(data: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        builders_of(data, BLOCKS, IMPORTS)


def test_a_module_must_be_on_our_own_command_line() -> None:
    """Though this process has imported it."""
    with pytest.raises(ConfigError, match=r"--import tests\.node\.worlds"):
        builders_of(order([recipe(0)], [0] * 3), BLOCKS, ())
