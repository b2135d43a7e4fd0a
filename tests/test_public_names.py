"""The public names: a fixed list, each importable and described, and an import that stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import clusterenv

NAMES = [
    "APS",
    "ActionError",
    "ActionTypeError",
    "Always",
    "Batch",
    "ClusterEnv",
    "ClusterEnvError",
    "ConfigError",
    "ConfigTypeError",
    "EnvError",
    "Every",
    "GivenUp",
    "Inproc",
    "Join",
    "Kubernetes",
    "LaunchError",
    "Local",
    "Never",
    "OnChange",
    "OnLoss",
    "PolicyError",
    "ProtocolError",
    "Ray",
    "ResultError",
    "Slurm",
    "SpaceMismatch",
    "Ssh",
    "Tcp",
    "Timeouts",
    "WeightsCorrupt",
    "WeightsError",
    "WorkerLost",
    "WorkersMissing",
    "make_vec",
]


def test_the_list_is_the_one_we_promise() -> None:
    assert clusterenv.__all__ == NAMES
    assert sorted(clusterenv.__all__) == clusterenv.__all__


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(clusterenv, name)
    assert value.__name__ == name
    assert value.__module__.startswith("clusterenv.")
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}("), "the docstring that dataclasses make up is none"


def test_names_are_listed_before_they_are_loaded() -> None:
    assert set(NAMES) <= set(dir(clusterenv))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Divergence'"):
        clusterenv.Divergence  # noqa: B018


def test_every_error_is_public() -> None:
    from clusterenv import errors

    kinds = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert kinds <= set(NAMES)


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_the_import_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "gymnasium", "cloudpickle", "multiprocessing")
    program = f"import sys, clusterenv; print([name for name in {heavy!r} if name in sys.modules])"
    assert run(program) == "[]"


def test_the_whole_package_works_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import clusterenv\n"
        "envs = clusterenv.make_vec('CartPole-v1', num_envs=2, cluster='inproc')\n"
        "print(envs.reset(seed=1)[0].shape)"
    )
    assert run(program) == "(2, 4)"


def test_the_errors_and_settings_load_neither_numpy_nor_gymnasium() -> None:
    program = (
        "import sys, clusterenv\n"
        "clusterenv.Timeouts, clusterenv.Local, clusterenv.EnvError\n"
        "print('numpy' in sys.modules, 'gymnasium' in sys.modules)"
    )
    assert run(program) == "False False"
