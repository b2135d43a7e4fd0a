"""The ids under `clusterenv/`: there whichever of the two packages is imported first."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

ID = "clusterenv/Remote-v0"


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "imports",
    [
        "import gymnasium, clusterenv",
        "import clusterenv, gymnasium",
        "import clusterenv, gymnasium.vector",
        "import clusterenv, importlib; gymnasium = importlib.import_module('gymnasium')",
        "import clusterenv; from clusterenv import make_vec; import gymnasium",
    ],
)
def test_it_is_registered_in_any_order(imports: str) -> None:
    assert run(f"{imports}\nprint({ID!r} in gymnasium.registry)") == "True"


def test_gymnasium_finds_it_by_module() -> None:
    program = (
        "import gymnasium\n"
        f"envs = gymnasium.make_vec('clusterenv:{ID}', num_envs=3, env_id='CartPole-v1', cluster='inproc')\n"
        "print(type(envs.unwrapped).__name__, envs.reset(seed=1)[0].shape)\n"
        "envs.close()"
    )
    assert run(program) == "ClusterEnv (3, 4)"


def test_a_second_import_does_not_register_again() -> None:
    program = (
        "import warnings; warnings.simplefilter('error')\n"
        "import sys, gymnasium, clusterenv\n"
        "del sys.modules['clusterenv'], sys.modules['clusterenv._registration']\n"
        f"import clusterenv\nprint({ID!r} in gymnasium.registry)"
    )
    assert run(program) == "True"


def test_gymnasium_loads_as_it_always_does() -> None:
    program = (
        "import clusterenv, sys, importlib.util, gymnasium\n"
        "watchers = [finder for finder in sys.meta_path if 'clusterenv' in type(finder).__module__]\n"
        "print(watchers, gymnasium.__file__ is not None, bool(importlib.util.find_spec('gymnasium.spaces')))"
    )
    assert run(program) == "[] True True"


def test_looking_for_gymnasium_is_not_loading_it() -> None:
    program = (
        "import clusterenv, importlib.util\n"
        "importlib.util.find_spec('gymnasium')\n"
        f"import gymnasium\nprint({ID!r} in gymnasium.registry)"
    )
    assert run(program) == "True"


def test_resources_and_source_of_gymnasium_can_be_read() -> None:
    program = (
        "import clusterenv, gymnasium, inspect, importlib.resources\n"
        "print('register' in inspect.getsource(gymnasium),"
        " importlib.resources.files('gymnasium').joinpath('__init__.py').is_file())"
    )
    assert run(program) == "True True"


def test_here_it_is_registered_too() -> None:
    import clusterenv  # noqa: F401

    assert ID in gymnasium.registry


def test_the_small_environments_are_registered_and_load_late() -> None:
    program = (
        "import clusterenv, sys, gymnasium\n"
        "ids = [id for id in gymnasium.registry if id.startswith('clusterenv/')]\n"
        "early = [name for name in sys.modules if name.startswith('clusterenv.envs.')]\n"
        "print(*sorted(ids), early)\n"
    )
    expected = "clusterenv/CartPoleNoVelocity-v0 clusterenv/Catch-v0 clusterenv/Recall-v0 clusterenv/Remote-v0 []"
    assert run(program) == expected
