"""ClusterEnv: Gymnasium environments on many processes, behind the ordinary `VectorEnv` API.

    import clusterenv

    envs = clusterenv.make_vec("CartPole-v1", num_envs=32, cluster="local:4")
    observations, infos = envs.reset(seed=1)

Names load when they are first used, so that `import clusterenv` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from clusterenv import _registration
from clusterenv._version import __version__ as __version__

if TYPE_CHECKING:
    from clusterenv.clusters import Join, Kubernetes, Ray, Slurm, Ssh, Tcp
    from clusterenv.config import Inproc, Local, OnLoss, Timeouts
    from clusterenv.env.batch import Batch
    from clusterenv.env.make import make_vec
    from clusterenv.env.vector import ClusterEnv
    from clusterenv.errors import (
        ActionError,
        ActionTypeError,
        ClusterEnvError,
        ConfigError,
        ConfigTypeError,
        EnvError,
        GivenUp,
        LaunchError,
        PolicyError,
        ProtocolError,
        ResultError,
        SpaceMismatch,
        WeightsCorrupt,
        WeightsError,
        WorkerLost,
        WorkersMissing,
    )
    from clusterenv.sync.aps import APS
    from clusterenv.sync.rules import Always, Every, Never, OnChange

_HOME = {
    "APS": "sync.aps",
    "ActionError": "errors",
    "ActionTypeError": "errors",
    "Always": "sync.rules",
    "Batch": "env.batch",
    "ClusterEnv": "env.vector",
    "ClusterEnvError": "errors",
    "ConfigError": "errors",
    "ConfigTypeError": "errors",
    "EnvError": "errors",
    "Every": "sync.rules",
    "GivenUp": "errors",
    "Inproc": "config",
    "Join": "clusters",
    "Kubernetes": "clusters",
    "LaunchError": "errors",
    "Local": "config",
    "Never": "sync.rules",
    "OnChange": "sync.rules",
    "OnLoss": "config",
    "PolicyError": "errors",
    "ProtocolError": "errors",
    "Ray": "clusters",
    "ResultError": "errors",
    "Slurm": "clusters",
    "SpaceMismatch": "errors",
    "Ssh": "clusters",
    "Tcp": "clusters",
    "Timeouts": "config",
    "WeightsCorrupt": "errors",
    "WeightsError": "errors",
    "WorkerLost": "errors",
    "WorkersMissing": "errors",
    "make_vec": "env.make",
}

__all__ = [
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

_registration.when_gymnasium_loads()


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
