"""From the settings of a run to its environments."""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import TYPE_CHECKING

from clusterenv.env.make import make_vec
from clusterenv.envs import EPISODE_CONTINUES
from clusterenv.wrappers import KeepInfos

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterenv.config import Cluster
    from clusterenv.env.vector import ClusterEnv
    from clusterenv.learners.common.config import LearnerConfig


@contextlib.contextmanager
def environments(config: LearnerConfig, cluster: str | Cluster) -> Iterator[ClusterEnv]:
    """The environments of the settings, on a cluster, closed at the end."""
    wrappers = config.wrappers()
    if config.inference == "head":
        wrappers += (functools.partial(KeepInfos, keep=(EPISODE_CONTINUES,)),)
    with closing(
        make_vec(config.env_id, config.num_envs, wrappers=wrappers, cluster=cluster, **config.env_kwargs())
    ) as envs:
        yield envs


@contextlib.contextmanager
def closing(envs: ClusterEnv) -> Iterator[ClusterEnv]:
    """Close the environments at the end. After an interrupt a rollout is pending, which is no news to anybody."""
    try:
        yield envs
    except KeyboardInterrupt:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Calling `close` while waiting", UserWarning)
            envs.close()
        raise
    finally:
        envs.close()
