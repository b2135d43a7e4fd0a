"""From the settings of a run to its environments."""

from __future__ import annotations

import contextlib
import functools
import textwrap
import warnings
from typing import TYPE_CHECKING, Any

from clusterenv.env.make import EnvFactory, make_vec
from clusterenv.env.vector import ClusterEnv
from clusterenv.envs import EPISODE_CONTINUES
from clusterenv.errors import SpaceMismatch
from clusterenv.learners.common.tasks import task_of
from clusterenv.wrappers import KeepInfos

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterenv.config import Cluster, Timeouts
    from clusterenv.learners.common.config import LearnerConfig
    from clusterenv.learners.common.tasks import Task

_MAX_REASON = 300  # characters


@contextlib.contextmanager
def environments(config: LearnerConfig, cluster: str | Cluster) -> Iterator[ClusterEnv]:
    """The environments of the settings, on a cluster, closed at the end."""
    tasks = config.all_tasks()
    if config.inference == "head":
        quiet = functools.partial(KeepInfos, keep=(EPISODE_CONTINUES,))
        tasks = tuple(task._replace(wrappers=(*task.wrappers, quiet)) for task in tasks)
    with closing(make(tasks, config.num_envs, cluster, on_loss=config.on_loss, timeouts=config.timeouts)) as envs:
        yield envs


def make(
    tasks: Sequence[Task],
    slots: int,
    cluster: str | Cluster,
    *,
    on_loss: str = "restart",
    timeouts: Timeouts | None = None,
) -> ClusterEnv:
    """The environments of these tasks, dealt out to so many slots; `on_loss` and `timeouts` as for `make_vec`.

    Raises:
        SpaceMismatch: the tasks do not share their spaces.
    """
    shared: dict[str, Any] = {"cluster": cluster, "on_loss": on_loss, "timeouts": timeouts}
    if len(tasks) == 1:
        (task,) = tasks
        return make_vec(task.env_id, slots, wrappers=task.wrappers, **shared, **task.kwargs)
    factories = []
    for slot in range(slots):
        task = tasks[task_of(slot, len(tasks))]
        factories.append(EnvFactory.of(task.env_id, task.wrappers, check=slot < len(tasks), **task.kwargs))
    try:
        # A network looks at shape and dtype: bounds of observations may differ.
        return ClusterEnv(factories, observation_mode="different", **shared)
    except SpaceMismatch as error:
        numbered = ", ".join(f"slot {number}: {task.name}" for number, task in enumerate(tasks))
        reason = textwrap.shorten(str(error).rstrip("."), _MAX_REASON, placeholder=" ...")  # it may list all slots
        raise SpaceMismatch(
            f"the tasks do not fit together: {reason}. One agent needs observations and actions of one form; a wrapper "
            f"can translate. Played by {numbered}."
        ) from error


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
