"""The watch over workers: who has not moved for too long, by their counts and a clock that is passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.env.players import Watch
from clusterenv.node.local import LocalNode
from tests.env.policies import Linear
from tests.faults.interrupts import interrupted_at
from tests.zoo import counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]

WORKERS = 3
# How much time passes, who moves on, who is forgotten, and who is looked at then.
some = st.sets(st.integers(0, WORKERS - 1))
EVENTS = st.lists(st.tuples(st.integers(0, 6), some, some, some), max_size=30)


@settings(max_examples=100)
@given(EVENTS, st.integers(1, 10))
def test_a_worker_is_stuck_if_it_was_looked_at_and_has_not_moved_within_the_limit(events: list, limit: int) -> None:  # type: ignore[type-arg]
    progress = np.zeros(WORKERS, np.int64)
    watch = Watch(progress, float(limit))
    now = 0.0
    since: dict[int, float] = {}  # when a look first found the worker where it is
    at: dict[int, int] = {}
    for passed, moving, forgotten, looked in events:
        now += passed
        progress[sorted(moving)] += 1
        for worker in forgotten:
            watch.forget(worker)
            since.pop(worker, None)
        expected = []
        for worker in sorted(looked):
            if worker not in since or at[worker] != progress[worker]:
                since[worker], at[worker] = now, int(progress[worker])
            elif now - since[worker] > limit:
                expected.append(worker)
        assert watch.stuck(sorted(looked), now) == expected


@given(EVENTS)
@settings(max_examples=20)
def test_without_a_limit_nobody_is_stuck(events: list) -> None:  # type: ignore[type-arg]
    watch = Watch(np.zeros(WORKERS, np.int64), None)
    now = 0.0
    for passed, _, _, looked in events:
        now += 1000.0 * passed
        assert watch.stuck(sorted(looked), now) == []


def test_a_worker_that_rested_has_its_whole_limit_again() -> None:
    watch = Watch(np.zeros(1, np.int64), 10.0)
    assert watch.stuck([0], 0.0) == []
    watch.forget(0)
    assert watch.stuck([0], 100.0) == []
    assert watch.stuck([0], 110.0) == []
    assert watch.stuck([0], 110.5) == [0]
    assert watch.stuck([0], 111.0) == [0], "until somebody does something about it"


@pytest.mark.parametrize("name", ["post", "replies"])
def test_after_an_interrupted_detach_the_policy_is_brought_anew(make_local: Make, name: str) -> None:
    envs = make_local(counting(2))
    envs.reset(seed=0)
    envs.attach(Linear(choices=3), seed=1)
    envs.rollout(2)
    with interrupted_at(LocalNode, name, 1):
        envs.detach()
    assert envs.rollout(2).obs[:, :, 1].tolist() == [[2, 2], [3, 3], [4, 4]]
