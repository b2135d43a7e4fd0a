"""What cannot go to other hosts is refused, soon and in words that help."""

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import pytest

from clusterenv import ClusterEnv, ClusterEnvError, ConfigError, EnvError
from tests.conformance.envs import TrialEnv
from tests.conformance.kit import TEXTS, TRIAL, abroad
from tests.env.policies import Linear

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    Make = Callable[..., ClusterEnv]

TCP = TEXTS["tcp"]


def test_functions_do_not_go_to_other_hosts() -> None:
    for factory in (lambda: gymnasium.make("CartPole-v1"), TrialEnv, functools.partial(TrialEnv, 1)):
        with pytest.raises(ConfigError, match=r"env_fns\[0\].*never code.*make_vec\('module:Id-v0'"):
            ClusterEnv([factory], cluster=TCP)


def test_wrappers_without_a_name_do_not_go_to_other_hosts(make: Make) -> None:
    with pytest.raises(ConfigError, match="lambda"):
        make(cluster=TCP, wrappers=[lambda env: env])


@abroad
def test_wrappers_of_modules_that_nobody_named(make: Make) -> None:
    with pytest.raises(ClusterEnvError, match=r"tests\.wire\.wrapping"):
        make("CartPole-v1", wrappers=[_wrapper_of_another_module()])


def _wrapper_of_another_module() -> Any:
    from tests.wire import wrapping

    return next(
        each for each in vars(wrapping).values() if isinstance(each, type) and each.__module__ == wrapping.__name__
    )


def test_arguments_that_are_no_plain_data(make: Make) -> None:
    with pytest.raises(ClusterEnvError, match="length"):
        make(cluster=TCP, length=object())


@abroad
def test_policies_in_numpy_do_not_go_to_other_hosts(next_step: ClusterEnv) -> None:
    next_step.reset(seed=1)
    with pytest.raises(ConfigError, match=r"torch|ONNX|onnx"):
        next_step.attach(Linear(inputs=4, choices=5))
    next_step.step([1] * next_step.num_envs)


@pytest.fixture
def hidden_module(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that the head can import and the nodes cannot, with an environment."""
    (tmp_path / "only_here.py").write_text(
        "import gymnasium\ngymnasium.register('OnlyHere-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "only_here"
    gymnasium.registry.pop("OnlyHere-v0", None)
    sys.modules.pop("only_here", None)


@abroad
def test_a_module_that_nodes_do_not_have(make: Make, hidden_module: str) -> None:
    began = time.monotonic()
    with pytest.raises(ClusterEnvError, match=f"No module named '{hidden_module}'"):
        make(f"{hidden_module}:OnlyHere-v0")
    assert time.monotonic() - began < 50.0, "a minute is how long nodes are waited for"


@abroad
def test_an_id_that_nodes_do_not_know(make: Make) -> None:
    gymnasium.register("OnlyInThisTest-v0", "gymnasium.envs.classic_control:CartPoleEnv")
    try:
        began = time.monotonic()
        with pytest.raises(ClusterEnvError, match="does not know the environment 'OnlyInThisTest-v0'"):
            make("OnlyInThisTest-v0")
        assert time.monotonic() - began < 50.0, "a minute is how long nodes are waited for"
    finally:
        del gymnasium.registry["OnlyInThisTest-v0"]


def test_an_environment_that_cannot_be_built(make: Make) -> None:
    with pytest.raises(EnvError, match="no_such_argument") as caught:
        make(TRIAL, no_such_argument=1)
    assert isinstance(caught.value, TypeError)
