"""Several tasks for one agent: what they are, as text, and which slot plays which.

A task is an environment id and its arguments: "clusterenv/Catch-v0 rows=5 columns=7". Slots are dealt out in turn, so
that every worker has some of each task and the task of a slot follows from its number alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterenv.errors import ConfigError
from clusterenv.learners.common.env_args import parse_env_args

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import gymnasium

    Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]

# Words between spaces; a space inside quotes or brackets belongs to the value that it stands in.
_WORDS = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|\{[^}]*\}|\S)+""")
_MAX_LISTED = 3


class Task(NamedTuple):
    """What the environments of some slots are.

    Attributes:
        name: in metrics and for people.
        env_id: the environment.
        kwargs: its arguments.
        wrappers: what is put around it, on its worker.
    """

    name: str
    env_id: str
    kwargs: dict[str, Any]
    wrappers: tuple[Wrapper, ...] = ()


def parse_tasks(texts: Sequence[str], common: Mapping[str, Any] | None = None) -> tuple[Task, ...]:
    """The tasks of the settings.

    Args:
        texts: each an environment id, and its arguments as `parse_env_args` reads them.
        common: arguments of all of them; a task's own win.

    Raises:
        ConfigError: a text cannot be read, or two tasks would have the same name.

    Example:
        >>> short, long = parse_tasks(["clusterenv/Recall-v0 delay=2", "clusterenv/Recall-v0 delay=20"])
        >>> short.name, long.kwargs
        ('clusterenv-Recall-v0-delay=2', {'delay': 20})
    """
    tasks = [_parsed(text, common or {}) for text in texts]
    names = [task.name for task in tasks]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigError(
                f"tasks has {texts[number]!r} twice, or another that would be called {name!r} too. Each task is named "
                "once; slots are dealt out evenly."
            )
    return tuple(tasks)


def _parsed(text: str, common: Mapping[str, Any]) -> Task:
    words = _WORDS.findall(text)
    if not words or "=" in words[0]:
        raise ConfigError(
            f"tasks has {text!r}, which does not begin with an environment id. Write the id and then its arguments, "
            "all in one text: 'clusterenv/Recall-v0 delay=2'."
        )
    env_id, *arguments = words
    # A name goes into file names of plots, tags of TensorBoard and shells: no spaces, no quotes, no slashes.
    name = re.sub(r"[^A-Za-z0-9._=-]+", "-", " ".join(words)).strip("-")
    return Task(name, env_id, {**common, **parse_env_args(arguments, where=f"tasks: {text!r}")})


def task_of(slot: Any, tasks: int) -> Any:
    """Which of so many tasks a slot plays; also for an array or a tensor of slots.

    Example:
        >>> [task_of(slot, 3) for slot in range(8)]
        [0, 1, 2, 0, 1, 2, 0, 1]
    """
    return slot % tasks


def title_of(tasks: Sequence[Task]) -> str:
    """What a run with these tasks is called: by its environments, or by their number if they are many.

    Example:
        >>> title_of(parse_tasks(["CartPole-v1", "CartPole-v1 sutton_barto_reward=true", "Acrobot-v1"]))
        'CartPole-v1+Acrobot-v1'
    """
    ids = list(dict.fromkeys(task.env_id for task in tasks))
    return "+".join(ids) if len(ids) <= _MAX_LISTED else f"{len(tasks)} tasks"
