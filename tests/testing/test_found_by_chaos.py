"""What the nemesis has found, each as a small story of its own."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import clusterenv
from clusterenv.testing import EchoPolicy, History, check_history, echo_slots
from tests.faults.kit import kill
from tests.zoo import wait_until

LIMIT_S = 30.0
NUM_ENVS = 4


def test_a_stream_is_closed_before_the_replacement_of_a_worker_was_heard_of() -> None:
    """It has begun new episodes: a later step must not say that they begin with it."""
    slots = [{"env_kwargs": each} for each in echo_slots(NUM_ENVS, length=1000)]
    slow: dict[str, Any] = {"chances": {"sleep": 1.0}, "sleep_s": 0.005}
    history = History(NUM_ENVS)
    with clusterenv.make_vec(
        "clusterenv.testing:Chaos-v0", NUM_ENVS, cluster="local:2", env_id="Echo-v0", slot_kwargs=slots, **slow
    ) as envs:
        history.reset(envs.reset(seed=1)[0])
        envs.attach(EchoPolicy(), sync="never", seed=1)
        with envs.stream(steps=1000) as stream:
            kill(envs, 0)
            detached = envs._detached
            assert detached is not None
            before = int(detached.players.fragments.progress[0])

            def plays_again() -> bool:
                stream._receive(0.01)
                here = detached.players.restarts == 1 and 0 in stream._playing
                return here and int(detached.players.fragments.progress[0]) > before + 2

            wait_until(plays_again, LIMIT_S)
        history.cut()
        for turn in range(3):
            actions = np.full(NUM_ENVS, turn)
            history.step(actions, envs.step(actions))
    assert check_history(history) == []


@pytest.mark.parametrize("stream", [False, True])
def test_an_environment_that_fails_often_in_a_long_fragment_is_in_no_crash_loop(stream: bool) -> None:
    """It gets somewhere between two failures, as it would in steps; one that fails in every step does not."""
    for every, tolerable in ((11, True), (1, False)):
        with clusterenv.make_vec(
            "clusterenv.testing:Chaos-v0",
            NUM_ENVS,
            cluster="inproc:2",
            env_id="Echo-v0",
            slot_kwargs=[{"at": {"raise": [every]}}, {}, {}, {}],
        ) as envs:
            envs.reset(seed=1)
            envs.attach(EchoPolicy(), sync="never", seed=1)
            with contextlib.ExitStack() as stack:
                if not tolerable:
                    stack.enter_context(pytest.raises(clusterenv.EnvError, match="ChaosError: planned, at step 1"))
                batches = stack.enter_context(envs.stream(60)) if stream else iter(lambda: envs.rollout(60), None)
                for batch, _ in zip(batches, range(3), strict=False):
                    failing = batch.slot == 0  # in a stream, in no column or in several
                    assert (batch.truncated[:, failing].sum(axis=0) >= 5).all()
                    assert not batch.truncated[:, ~failing].any()
