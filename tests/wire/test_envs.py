"""Recipes of environments: wrappers by name, and nothing that a host has not loaded by itself."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
import re
import sys
import types
from typing import Any

import gymnasium
import hypothesis.strategies as st
import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import ClipAction, RecordVideo, RescaleAction, TimeLimit
from hypothesis import given, settings

from clusterenv.errors import ConfigError, ConfigTypeError, ProtocolError, ResultError
from clusterenv.wire.envs import check_env_id, recipe_from_data, recipe_to_data, resolve_wrapper
from clusterenv.wire.plain import Codec
from tests.wire import wrapping

CODEC = Codec()
HERE = wrapping.__name__


def over_the_wire(data: Any) -> Any:
    return CODEC.unpack(CODEC.pack(data))


def made(env_id: str, wrappers: list[Any], **kwargs: Any) -> Any:
    recipe = recipe_from_data(over_the_wire(recipe_to_data(env_id, kwargs, wrappers)), [HERE])
    env = gymnasium.make(recipe.env_id, **recipe.kwargs)
    for wrapper in recipe.wrappers:
        env = wrapper(env)
    return env


def test_an_environment_is_made_elsewhere_as_it_would_be_here() -> None:
    wrappers = [
        wrapping.Scale,
        functools.partial(wrapping.Scale, factor=5.0),
        functools.partial(wrapping.shorten, steps=2),
    ]
    env = made("CartPole-v1", wrappers, sutton_barto_reward=False)
    assert isinstance(env, TimeLimit)
    env.reset(seed=1)
    assert [env.step(0)[1:4] for _ in range(2)] == [(10.0, False, False), (10.0, False, True)]


def test_wrappers_of_gymnasium_need_no_import() -> None:
    recipe = recipe_from_data(
        over_the_wire(
            recipe_to_data("Pendulum-v1", {}, [ClipAction, functools.partial(RescaleAction, min_action=np.float32(-1))])
        ),
        (),
    )
    assert recipe.wrappers[0] is ClipAction
    assert isinstance(recipe.wrappers[1], functools.partial)
    assert recipe.wrappers[1].keywords == {"min_action": np.float32(-1)}


def test_a_class_within_a_class() -> None:
    recipe = recipe_from_data(recipe_to_data("CartPole-v1", {}, [wrapping.Scale.Inner]), [HERE])
    assert recipe.wrappers == (wrapping.Scale.Inner,)


def test_the_callers_dictionary_is_not_kept() -> None:
    kwargs = {"a": 1}
    data = recipe_to_data("CartPole-v1", kwargs)
    kwargs["a"] = 2
    assert data == ["CartPole-v1", {"a": 1}, []]


def test_arguments_that_are_not_plain_are_named() -> None:
    with pytest.raises(ResultError, match=r"function at \[1\]\['f'\]"):
        CODEC.pack(recipe_to_data("CartPole-v1", {"f": test_a_class_within_a_class}))
    not_plain: Any = object()
    partial = functools.partial(wrapping.Scale, factor=not_plain)
    with pytest.raises(ResultError, match=r"object at \[2\]\[0\]\[2\]\['factor'\]"):
        CODEC.pack(recipe_to_data("CartPole-v1", {}, [partial]))


def main_class() -> Any:
    kind = type("InMain", (gymnasium.Wrapper,), {"__module__": "__main__"})
    kind.__qualname__ = "InMain"
    return kind


@pytest.mark.parametrize(
    ("wrapper", "reason"),
    [
        (lambda env: env, "it is a lambda, or defined inside a function"),
        (wrapping.anonymous, "it is a lambda"),
        (wrapping.local(), "or defined inside a function"),
        (main_class(), "it is defined in the program that you started"),
        (wrapping.renamed, "its module does not have it under that name"),
        (gymnasium.make, "its module does not have it under that name"),
        (functools.partial(lambda env, x: env, x=1), "it is a lambda"),
    ],
)
def test_wrappers_that_have_no_name_elsewhere(wrapper: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"{reason}.*Put it in a module .* and name that module in imports="):
        recipe_to_data("CartPole-v1", {}, [wrapper])


@pytest.mark.parametrize("wrapper", [3, "gymnasium.wrappers:TimeLimit", len, functools.partial(len), [].append])
def test_what_is_no_class_or_function(wrapper: Any) -> None:
    with pytest.raises(ConfigTypeError, match="must be a class, a function"):
        recipe_to_data("CartPole-v1", {}, [wrapper])


@pytest.mark.parametrize(
    ("reference", "allowed", "words"),
    [
        (f"{HERE}:Scale", [], f"--import {HERE}"),
        (f"{HERE}:Scale", ["tests.wir", "test", "other"], f"--import {HERE}"),
        ("os:system", [], "--import os"),
        ("gymnasium_other:Thing", ["gymnasium"], "--import gymnasium_other"),
        ("absent.module:Thing", ["absent"], "--import absent.module"),
        (f"{HERE}:os.system", [HERE], "not defined in that module"),
        (f"{HERE}:TimeLimit", [HERE], "not defined in that module"),
        (f"{HERE}:NOT_A_WRAPPER", [HERE], "not defined in that module"),
        (f"{HERE}:renamed", [HERE], "not defined in that module"),
        (f"{HERE}:Scale.__class__", [HERE], "not defined in that module"),
        (f"{HERE}:Scale.__init__", [HERE], "not defined in that module"),
        (f"{HERE}:Scale.factor.real", [HERE], "not defined in that module"),
        (f"{HERE}:absent", [HERE], "not defined in that module"),
        ("gymnasium.envs.registration:make", ["gymnasium"], "not defined in that module"),
        ("gymnasium.envs.registration:load_env_creator", [], "not defined in that module"),
        ("gymnasium.vector.sync_vector_env:SyncVectorEnv", [], "not defined in that module"),
        ("clusterenv.wrappers.last:_nothing_done", [], "not defined in that module"),
        ("clusterenv.wrappers.last:RecordConstructorArgs", [], "not defined in that module"),
        ("clusterenv.config:check_num_envs", [], "not told to import"),
    ],
)
def test_references_that_lead_nowhere(reference: str, allowed: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_wrapper(reference, allowed)


def offered() -> list[type]:
    """All wrappers of Gymnasium that can be imported here."""
    for module in pkgutil.iter_modules(gymnasium.wrappers.__path__, "gymnasium.wrappers."):
        with contextlib.suppress(ImportError, DependencyNotInstalled):
            importlib.import_module(module.name)
    found: list[type] = [gymnasium.Wrapper]
    known: set[type] = set()
    while found:
        known.add(kind := found.pop())
        found += kind.__subclasses__()
    return sorted((each for each in known if each.__module__.startswith("gymnasium.")), key=lambda each: each.__name__)


def is_known(reference: str) -> bool:
    try:
        resolve_wrapper(reference, ["gymnasium"])
    except ConfigError:
        return False
    return True


@pytest.mark.threat("T12")
def test_wrappers_that_write_files_are_not_for_nodes() -> None:
    """Whatever a newer Gymnasium adds: if it writes, somebody has to look at it."""
    writes = re.compile(r"\bos\.|\bopen\(|\bPath\(|\bshutil\b|\btempfile\b|\.save\(")
    refused = [each.__name__ for each in offered() if not is_known(f"{each.__module__}:{each.__qualname__}")]
    assert [each.__name__ for each in offered() if writes.search(inspect.getsource(each))] == refused == ["RecordVideo"]


def test_a_film_is_refused_before_it_travels() -> None:
    film = functools.partial(RecordVideo, video_folder="/nowhere")
    with pytest.raises(ConfigError, match="cannot travel to other hosts: it writes files where it is told to"):
        recipe_to_data("CartPole-v1", {}, [film])
    recipe = ["CartPole-v1", {}, [["gymnasium.wrappers.rendering:RecordVideo", ["/nowhere"], {}]]]
    with pytest.raises(ConfigError, match="is not for a node: it writes files where it is told to"):
        recipe_from_data(recipe, ())


def test_what_is_below_an_allowed_module_is_allowed() -> None:
    for allowed in (HERE, HERE.rpartition(".")[0], "tests"):
        assert resolve_wrapper(f"{HERE}:Scale", [allowed]) is wrapping.Scale


def test_our_own_wrappers_are_known_everywhere() -> None:
    from clusterenv.wrappers import LastActionReward

    data = recipe_to_data("CartPole-v1", {}, [functools.partial(LastActionReward, clip=2.0)])
    (wrapper,) = recipe_from_data(data, ()).wrappers
    assert isinstance(wrapper, functools.partial)
    assert (wrapper.func, wrapper.keywords) == (LastActionReward, {"clip": 2.0})


def test_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(f"code was run for {name}")

    module = types.ModuleType("lazy_module")
    module.__dict__["__getattr__"] = refuse
    monkeypatch.setitem(sys.modules, "lazy_module", module)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    allowed = ["colorsys", "lazy_module"]
    for reference in ("colorsys:rgb_to_hsv", "lazy_module:Thing"):
        with pytest.raises(ConfigError):
            resolve_wrapper(reference, allowed)
    with pytest.raises(ConfigError, match="--import colorsys"):
        check_env_id("colorsys:Thing-v0", allowed)
    assert "colorsys" not in sys.modules


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5", "my-space/Env_2.5-v0", f"{HERE}:Thing-v0"])
def test_ids_that_are_taken(env_id: str) -> None:
    assert check_env_id(env_id, [HERE]) == env_id
    assert recipe_to_data(env_id, {})[0] == env_id


@pytest.mark.parametrize("allowed", [[], ["tests"], ["os", "other"]])
def test_a_module_of_an_id_must_be_named_itself(allowed: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"--import {HERE}"):
        check_env_id(f"{HERE}:Thing-v0", allowed)


@pytest.mark.parametrize(
    "env_id",
    [
        "",
        "a" * 300,
        "Cart\nPole-v1",
        "CartPole-v1\n",
        "a:b:c",
        ":CartPole-v1",
        "a/b/c",
        "é-v1",
        "a b",
        "../x:y",
        None,
        3,
    ],
)
def test_ids_that_are_none(env_id: Any) -> None:
    with pytest.raises(ProtocolError):
        check_env_id(env_id, ["a", "b"])
    with pytest.raises(ConfigError):
        recipe_to_data(env_id, {})


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        ["CartPole-v1", {}],
        ["CartPole-v1", [], []],
        ["CartPole-v1", {1: 2}, []],
        ["CartPole-v1", {}, None],
        ["CartPole-v1", {}, "x"],
        ["CartPole-v1", {}, [None]],
        ["CartPole-v1", {}, ["gymnasium.wrappers.common:TimeLimit"]],
        ["CartPole-v1", {}, [["gymnasium.wrappers.common:TimeLimit", [], []]]],
        ["CartPole-v1", {}, [["gymnasium.wrappers.common:TimeLimit", {}, {}]]],
        ["CartPole-v1", {}, [["gymnasium.wrappers.common:TimeLimit", [], {1: 2}]]],
        ["CartPole-v1", {}, [["gymnasium.wrappers.common", [], {}]]],
        ["CartPole-v1", {}, [["a:b:c", [], {}]]],
        ["CartPole-v1", {}, [["../a:b", [], {}]]],
        ["CartPole-v1", {}, [[3, [], {}]]],
        ["CartPole-v1", {}, [["a" * 300 + ":b", [], {}]]],
        ["CartPole-v1", {}, [["gymnasium.wrappers.common:TimeLimit", [], {}]] * 101],
        [None, {}, []],
    ],
)
def test_data_that_is_no_recipe(data: Any) -> None:
    with pytest.raises(ProtocolError):
        recipe_from_data(data, ["a"])


@given(st.one_of(st.text(max_size=40), st.from_regex(r"[a-z_.]{1,20}:[A-Za-z_.]{1,20}")))
@settings(max_examples=300)
def test_any_text_as_a_reference(text: str) -> None:
    with pytest.raises((ConfigError, ProtocolError)):
        resolve_wrapper(text, ["tests"])
