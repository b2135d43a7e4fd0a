"""A policy that plays on the workers while the learner learns."""

from __future__ import annotations

import gc
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError

from clusterenv import ConfigError, PolicyError
from tests.env.kit import LIMIT_S, gated
from tests.env.policies import CHOICES, Echo, Failing, Linear, wide
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterable

    from clusterenv import Batch, ClusterEnv

    Make = Callable[..., ClusterEnv]


def attached(make: Make, count: int = 4, length: int = 10**6, policy: Any = None, **kwargs: Any) -> ClusterEnv:
    """A batch that was reset, with a policy."""
    envs = make(wide(count, length))
    envs.reset(seed=1)
    kwargs.setdefault("sync", "on-change")
    envs.attach(policy or Linear(), seed=5, **kwargs)
    return envs


def first(batches: Iterable[Batch], count: int) -> list[Batch]:
    """So many batches."""
    return list(itertools.islice(batches, count))


def test_every_step_of_every_slot_comes_once_and_in_order(make: Make) -> None:
    envs = attached(make, count=5)
    seen: dict[int, list[float]] = {slot: [] for slot in range(5)}
    with envs.stream(steps=4, slots=3) as stream:
        while min(map(len, seen.values())) < 10 * 4:  # a worker without a core may be far behind the other
            batch = next(stream)
            assert (batch.T, batch.N) == (4, 3)
            for column, slot in enumerate(batch.slot.tolist()):
                assert (batch.obs[:, column, 0] == slot).all()
                seen[slot] += batch.obs[1:, column, 1].tolist()
    for counted in seen.values():
        assert counted == list(range(1, len(counted) + 1)), "nothing is missing, nothing comes twice"


def test_the_data_is_that_of_a_rollout(make: Make) -> None:
    rollout = attached(make, count=2, length=7).rollout(12)
    envs = attached(make, count=2, length=7)
    columns: dict[int, list[Any]] = {0: [], 1: []}
    with envs.stream(steps=4, slots=1) as stream:
        for batch in stream:
            columns[int(batch.slot[0])].append(batch)
            if min(map(len, columns.values())) >= 3:
                break
    for slot, parts in columns.items():
        for name in ("action", "reward", "terminated", "logp"):
            joined = np.concatenate([getattr(part, name)[:, 0] for part in parts[:3]])
            np.testing.assert_array_equal(joined, getattr(rollout, name)[:, slot], err_msg=name)


@pytest.mark.fault("F34")
def test_every_label_is_true_while_versions_pass(make_local: Make) -> None:
    policy = Echo()
    envs = attached(make_local, policy=policy, encoding="fp32")
    last = np.full(4, -1)
    with envs.stream(steps=5, slots=2) as stream:
        for number, batch in zip(range(1, 50), stream, strict=False):
            np.testing.assert_array_equal(batch.action, batch.version % CHOICES)
            np.testing.assert_array_equal(batch.reward, batch.action)
            assert (np.diff(batch.version, axis=0) >= 0).all(), "a version never goes back"
            assert (batch.version[0] >= last[batch.slot]).all()
            last[batch.slot] = batch.version[-1]
            policy.number = number
            envs.publish(policy)
    assert last.max() > 0


def test_publishing_in_the_middle_of_fragments(make_local: Make) -> None:
    policy = Echo()
    envs = attached(make_local, policy=policy, encoding="fp32")
    mixed = 0
    with envs.stream(steps=200) as stream:
        for batch in stream:
            np.testing.assert_array_equal(batch.action, batch.version % CHOICES)
            mixed += int((batch.version[0] != batch.version[-1]).any())
            for _ in range(20):
                policy.number += 1
                envs.publish(policy)
            if mixed:
                break
    assert mixed, "weights are taken between two steps"


# Flow.


@pytest.mark.fault("F37")
def test_workers_wait_when_the_learner_is_too_far_behind(make_local: Make) -> None:
    envs = attached(make_local, count=2)
    with envs.stream(steps=5, buffers=2) as stream:
        progress = envs._detached.players.fragments.progress  # type: ignore[union-attr]
        wait_until(lambda: progress.tolist() == [10, 10], LIMIT_S)
        first(stream, 4)
        # Eight fragments were read, and four more can be played ahead.
        wait_until(lambda: int(progress.sum()) == (8 + 4) * 5, LIMIT_S)
    assert envs.stats()["dropped_steps"] == 0


@pytest.mark.parametrize("slots", [3, 4, 5, 6, 7, 8])
def test_one_buffer_is_enough_for_batches_that_split_fragments(make: Make, slots: int) -> None:
    # What is left of a split fragment keeps the only buffer of its worker, while the others have too little.
    envs = attached(make, count=8, length=7)
    seen: dict[int, list[float]] = {slot: [] for slot in range(8)}
    with envs.stream(steps=4, slots=slots, buffers=1) as stream:
        while min(map(len, seen.values())) < 10 * 4:
            batch = next(stream)
            assert len(batch.final_at[0]) == int((batch.terminated | batch.truncated).sum()) == len(batch.final_obs)
            for column, slot in enumerate(batch.slot.tolist()):
                seen[slot] += batch.obs[:-1, column, 1].tolist()
    for counted in seen.values():
        assert counted == [step % 7 for step in range(len(counted))], "nothing is missing, nothing comes twice"


@pytest.mark.fault("F37")
def test_the_oldest_are_dropped_only_when_asked(make_local: Make) -> None:
    envs = attached(make_local, count=2)
    with envs.stream(steps=5, buffers=2, drop_oldest=True) as stream:
        detached: Any = envs._detached
        wait_until(lambda: detached.players.fragments.progress.tolist() == [10, 10], LIMIT_S)
        # What was played last may still be on its way.
        wait_until(lambda: stream.ready and detached.tally.dropped_steps > 0, LIMIT_S)
        seen = {0: [-1.0], 1: [-1.0]}
        for batch in first(stream, 5):
            for column, slot in enumerate(batch.slot.tolist()):
                seen[slot].append(float(batch.obs[0, column, 1]))
    assert envs.stats()["dropped_steps"] > 0
    assert all(starts == sorted(set(starts)) for starts in seen.values()), "what is left comes in order"


def test_nothing_is_dropped_where_nobody_plays_ahead(make_here: Make) -> None:
    envs = attached(make_here, count=3)
    with envs.stream(steps=4, slots=2, buffers=2, drop_oldest=True) as stream:
        seen: dict[int, list[float]] = {slot: [] for slot in range(3)}
        for batch in first(stream, 12):
            for column, slot in enumerate(batch.slot.tolist()):
                seen[slot] += batch.obs[1:, column, 1].tolist()
    assert seen == {slot: list(range(1, 12 * 2 * 4 // 3 + 1)) for slot in range(3)}
    assert envs.stats()["dropped_steps"] == 0


def test_workers_that_are_always_ready_do_not_hold_up_a_stream_that_drops(
    make_local: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = attached(make_local, count=2)
    with envs.stream(steps=2, buffers=3, drop_oldest=True) as stream:
        receive, looks = stream._receive, itertools.count(1)

        def always_more(limit_s: float) -> bool:
            assert limit_s or next(looks) <= 3, "no more than one worker can have had"
            return receive(limit_s) or True

        monkeypatch.setattr(stream, "_receive", always_more)
        assert next(stream).T == 2


@pytest.mark.fault("F36")
def test_a_slow_worker_does_not_hold_back_the_others(make_local: Make, tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    envs = make_local(gated(2, gate, slots=[1]))
    envs.reset(seed=1)
    envs.attach(Linear(2, 3), seed=1)
    with envs.stream(steps=3, slots=1) as stream:
        batches = first(stream, 6)
        assert {int(batch.slot[0]) for batch in batches} == {0}
        gate.touch()


def test_it_says_whether_the_next_batch_is_there(make_local: Make, tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    envs = make_local(gated(2, gate, slots=[0, 1]))
    envs.reset(seed=1)
    envs.attach(Linear(2, 3), seed=1)
    with envs.stream(steps=3, slots=2) as stream:
        assert not stream.ready, "both stand before the gate"
        gate.touch()
        wait_until(lambda: stream.ready, LIMIT_S)
        assert next(stream).N == 2
    assert not stream.ready


# The end of a stream.


def test_after_a_stream_everything_else_goes_on(make: Make) -> None:
    envs = attached(make, count=2)
    with envs.stream(steps=3) as stream:
        next(stream)
    counted = envs.step([1, 1])[0][:, 1]
    batch = envs.rollout(2)
    np.testing.assert_array_equal(batch.obs[0, :, 1], counted)
    with envs.stream(steps=4) as stream:
        assert next(stream).T == 4
    envs.reset(seed=1)


def test_while_a_stream_is_open_nothing_else_can_be_asked(make: Make) -> None:
    envs = attached(make, count=2)
    stream = envs.stream(steps=3)
    for call in (lambda: envs.step([1, 1]), lambda: envs.rollout(2), lambda: envs.stream(2), lambda: envs.call("slot")):
        with pytest.raises(AlreadyPendingCallError, match="Close the stream first"):
            call()
    with pytest.raises(AlreadyPendingCallError, match="stream"):
        envs.send([1, 1])
    assert next(stream).T == 3
    stream.close()
    stream.close()
    with pytest.raises(StopIteration):
        next(stream)
    assert envs.get_attr("slot") == (0, 1)


def test_a_stream_that_is_let_go_closes(make: Make) -> None:
    envs = attached(make, count=2)
    for _ in envs.stream(steps=3):
        break
    gc.collect()
    envs.step([1, 1])


def test_a_batch_can_be_closed_with_an_open_stream(make_local: Make) -> None:
    envs = attached(make_local, count=2)
    stream = envs.stream(steps=3)
    next(stream)
    envs.close()
    with pytest.raises((StopIteration, ClosedEnvironmentError)):
        next(stream)
    stream.close()


def test_a_policy_that_fails_ends_the_stream(make_local: Make) -> None:
    policy = Failing()
    envs = make_local(wide(4))
    envs.reset(seed=1)
    envs.attach(policy, seed=1, sync="on-change", encoding="fp32")
    good = policy.slope
    policy.slope = good + np.float32(1000.0)
    with envs.stream(steps=2) as stream:
        next(stream)
        envs.publish(policy)
        with pytest.raises(PolicyError, match="ZeroDivisionError"):
            first(stream, 20)
    policy.slope = good
    envs.publish(policy)
    assert envs.rollout(2).T == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"steps": 2.5}, "steps=2.5 must be a whole number"),
        ({"steps": 2, "slots": 0}, "between 1 and num_envs=4"),
        ({"steps": 2, "slots": 5}, "slots=5 must be between 1 and num_envs=4"),
        ({"steps": 2, "buffers": 0}, "buffers=0"),
        ({"steps": 2, "buffers": 1, "drop_oldest": True}, "would drop every fragment"),
    ],
)
def test_wrong_arguments(make_here: Make, arguments: dict[str, Any], complaint: str) -> None:
    envs = attached(make_here)
    with pytest.raises(ConfigError, match=complaint):
        envs.stream(**arguments)
    envs.step([1] * 4)
