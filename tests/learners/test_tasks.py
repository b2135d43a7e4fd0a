"""Several tasks as text, who plays which, and the batch that they make."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ConfigError, SpaceMismatch
from clusterenv.learners.common.environments import make
from clusterenv.learners.common.tasks import Task, parse_tasks, task_of, title_of
from tests.learners import envs as _registered  # noqa: F401

RECALL = "clusterenv/Recall-v0"


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("CartPole-v1", Task("CartPole-v1", "CartPole-v1", {})),
        ("  a/B-v0   delay=2 ", Task("a-B-v0-delay=2", "a/B-v0", {"delay": 2})),
        ("module:a/B-v0 game=Pong", Task("module-a-B-v0-game=Pong", "module:a/B-v0", {"game": "Pong"})),
        ('B-v0 title="two words" x=1', Task("B-v0-title=-two-words-x=1", "B-v0", {"title": "two words", "x": 1})),
        ("B-v0 sizes=[1, 2] y={ a = 1 }", Task("B-v0-sizes=-1-2-y=-a-=-1", "B-v0", {"sizes": [1, 2], "y": {"a": 1}})),
    ],
)
def test_a_task_is_an_id_and_its_arguments(text: str, task: Task) -> None:
    assert parse_tasks([text]) == (task,)


def test_common_arguments_are_those_of_all_and_a_task_may_have_its_own() -> None:
    first, second = parse_tasks(["A-v0 x=5", "A-v0 y=7"], {"x": 1, "z": 2})
    assert first.kwargs == {"x": 5, "z": 2}
    assert second.kwargs == {"x": 1, "y": 7, "z": 2}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["A-v0", ""], "tasks has '', which does not begin with an environment id"),
        (["delay=2"], "tasks has 'delay=2', which does not begin with an environment id"),
        (["A-v0 delay"], "tasks: 'A-v0 delay' has 'delay', which is not name=value"),
        (["A-v0 on=True"], "tasks: 'A-v0 on=True' has on=True. Write on=true"),
        (["A-v0 title='open"], "which is neither a word nor a value"),
        (["A-v0 num_envs=3"], "num_envs is not an argument of the environment"),
        (["A-v0 x=1", "B-v0", "A-v0  x=1"], "tasks has 'A-v0  x=1' twice"),
        (["a/B-v0", "a:B-v0"], "would be called 'a-B-v0' too"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_words(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse_tasks(texts)
    assert message in str(told.value)


@given(st.integers(1, 9), st.integers(1, 60))
def test_slots_are_dealt_out_evenly_and_in_turn(tasks: int, slots: int) -> None:
    dealt = [task_of(slot, tasks) for slot in range(slots)]
    counts = [dealt.count(task) for task in range(tasks)]
    assert sum(counts) == slots
    assert max(counts) - min(counts) <= 1
    assert task_of(np.arange(slots), tasks).tolist() == dealt


def test_many_environments_are_called_by_their_number() -> None:
    assert title_of(parse_tasks([f"{name}-v0" for name in "ABC"])) == "A-v0+B-v0+C-v0"
    assert title_of(parse_tasks([f"{name}-v0" for name in "ABCD"])) == "4 tasks"
    assert title_of(parse_tasks(["A-v0 x=1", "A-v0 x=2"])) == "A-v0"


@pytest.mark.parametrize("cluster", ["inproc:2", "local:2", "tcp:nodes=1,workers=2"])
def test_every_slot_plays_its_task(cluster: str) -> None:
    """Episodes of Recall have delay + 2 steps: the slot that ends tells what it plays."""
    tasks = parse_tasks([f"{RECALL} delay=0", f"{RECALL} delay=2", f"{RECALL} delay=5"])
    with make(tasks, 7, cluster) as envs:
        envs.reset(seed=1)
        ends = [0] * 7
        for step in range(1, 8):
            _, _, terminated, truncated, _ = envs.step(np.zeros(7, np.int64))
            for slot in np.flatnonzero(terminated | truncated):
                ends[slot] = ends[slot] or step
    assert ends == [2, 4, 7, 2, 4, 7, 2]


class Bounded(gymnasium.Env[Any, Any]):
    """Observations within bounds that differ from task to task."""

    def __init__(self, high: float = 1.0, size: int = 2, actions: int = 2) -> None:
        self.observation_space = spaces.Box(0, high, (size,), np.float32)
        self.action_space = spaces.Discrete(actions)
        self.high = high

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.full(self.observation_space.shape or (), self.high, np.float32), {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], 0.0, False, False, {}


if "test/Bounded-v0" not in gymnasium.registry:
    gymnasium.register("test/Bounded-v0", entry_point="tests.learners.test_tasks:Bounded")


def test_bounds_of_observations_may_differ() -> None:
    with make(parse_tasks(["test/Bounded-v0 high=1.0", "test/Bounded-v0 high=9.0"]), 4, "inproc") as envs:
        obs, _ = envs.reset()
        assert obs[:, 0].tolist() == [1, 9, 1, 9]


@pytest.mark.parametrize("other", ["size=3", "actions=5"])
def test_tasks_of_other_spaces_are_refused_by_name(other: str) -> None:
    with pytest.raises(SpaceMismatch) as told:
        make(parse_tasks(["test/Bounded-v0", f"test/Bounded-v0 {other}"]), 4, "inproc")
    assert "the tasks do not fit together: the " in str(told.value)
    assert f"slot 1: test-Bounded-v0-{other}" in str(told.value)
