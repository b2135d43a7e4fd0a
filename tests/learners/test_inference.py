"""Inference on the head: the data of workers that act themselves, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import threading
import traceback
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from clusterenv import ClusterEnv, Timeouts
from clusterenv.errors import ConfigError, EnvError, PolicyError
from clusterenv.learners.common import inference as inference_module
from clusterenv.learners.common import unrolls
from clusterenv.learners.common.config import LearnerConfig
from clusterenv.learners.common.inference import Inference
from clusterenv.learners.common.networks import make_network
from clusterenv.learners.common.networks.q_network import make_q_network
from clusterenv.learners.common.seeds import playing_seed
from tests.learners.envs import Gated, Lever, Screen
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

    from clusterenv.env.batch import Batch

SLOTS, STEPS = 6, 5
EPOCH = 4


def config(**changes: Any) -> LearnerConfig:
    settings: dict[str, Any] = {
        "num_envs": SLOTS,
        "rollout_steps": STEPS,
        "mode": "stream",
        "inference": "head",
        "seed": 3,
    }
    return LearnerConfig(**{**settings, **changes})


def network(envs: ClusterEnv, **kwargs: Any) -> Any:
    torch.manual_seed(0)
    return make_network(envs.single_observation_space, envs.single_action_space, hidden=(16,), **kwargs)


@contextlib.contextmanager
def inferring(
    make: Callable[[], Any], settings: LearnerConfig, *, cluster: str = "inproc:2", lstm: int = 0, **kwargs: Any
) -> Iterator[tuple[Inference, ClusterEnv]]:
    with ClusterEnv([make] * settings.num_envs, cluster=cluster, **kwargs) as envs:
        observations, _ = envs.reset(seed=settings.seed)
        subject = Inference(envs, observations, network(envs, lstm=lstm), settings, epoch=EPOCH)
        try:
            yield subject, envs
        finally:
            subject.close()


def by_slot(batches: list[Batch], count: int) -> dict[int, list[dict[str, Any]]]:
    """The first `count` unrolls of every slot, in their order."""
    found: dict[int, list[dict[str, Any]]] = {slot: [] for slot in range(SLOTS)}
    for batch in batches:
        for column, slot in enumerate(batch.slot.tolist()):
            ends = batch.final_at[1] == column
            found[slot].append(
                {
                    "obs": batch.obs[:, column],
                    "action": batch.action[:, column],
                    "reward": batch.reward[:, column],
                    "terminated": batch.terminated[:, column],
                    "truncated": batch.truncated[:, column],
                    "first": batch.first[:, column],
                    "final_at": batch.final_at[0][ends],
                    "final_obs": batch.final_obs[ends],
                    "logp": batch.logp[:, column],
                    "params": batch.params[:, column],
                    "value": None if batch.value is None else batch.value[:, column],
                    "states": None if batch.states is None else [part[:, column] for part in batch.states],
                    "state": [part[column] for part in batch.state],
                }
            )
    return {slot: unrolls[:count] for slot, unrolls in found.items()}


def episodes_of(batches: list[Batch], slot: int) -> list[tuple[float, int]]:
    told = []
    for batch in batches:
        mine = batch.episodes.slots == slot
        told += list(zip(batch.episodes.returns[mine].tolist(), batch.episodes.lengths[mine].tolist(), strict=True))
    return told


def played_by_workers(make: Callable[[], Any], settings: LearnerConfig, count: int, lstm: int) -> list[Batch]:
    with ClusterEnv([make] * SLOTS, cluster="inproc:2") as envs:
        envs.reset(seed=settings.seed)
        seed = playing_seed(settings.seed, EPOCH)
        envs.attach(network(envs, lstm=lstm), sync="never", encoding="fp32", seed=seed, runtime="torch")
        with envs.stream(STEPS, SLOTS) as stream:
            return [next(stream) for _ in range(count)]


@pytest.mark.parametrize("lstm", [0, 8])
@pytest.mark.parametrize("make", [Screen, Lever])
@pytest.mark.parametrize("changes", [{}, {"inference_batch": 1}, {"inference_batch": 6, "stream_slots": 6}])
def test_the_same_data_comes_from_head_and_workers(make: Any, lstm: int, changes: dict[str, Any]) -> None:
    """Equal seeds, equal weights: the same actions, bit by bit, and so the same episodes."""
    settings = config(**changes)
    theirs = played_by_workers(make, settings, count=3, lstm=lstm)
    with inferring(make, settings, lstm=lstm) as (subject, _):
        ours = [subject.next() for _ in range(3 * SLOTS // settings.batch_slots + 4)]
    expected, found = by_slot(theirs, 3), by_slot(ours, 3)
    compared = 0
    for slot in range(SLOTS):
        for wanted, got in zip(expected[slot], found[slot], strict=False):
            compared += 1
            for name in ("obs", "action", "reward", "terminated", "truncated", "first", "final_at", "final_obs"):
                np.testing.assert_array_equal(got[name], wanted[name], err_msg=name)
            assert np.abs(got["logp"] - wanted["logp"]).max() < 1e-4
            for name in ("params", "value"):
                np.testing.assert_allclose(got[name], wanted[name], atol=1e-5)
            for mine, other in zip(got["state"], wanted["state"], strict=True):
                np.testing.assert_allclose(mine, other, atol=1e-5)
        told = episodes_of(theirs, slot)
        assert told[: len(episodes_of(ours, slot))] == episodes_of(ours, slot)[: len(told)]
    assert compared >= 2 * SLOTS


def test_slots_that_explore_differently_do_so_on_the_head() -> None:
    settings = config()
    epsilons = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

    def greedy(envs: ClusterEnv) -> Any:
        torch.manual_seed(0)
        spaces_of_one = envs.single_observation_space, envs.single_action_space
        return make_q_network(*spaces_of_one, hidden=(16,), epsilon=epsilons, lstm=8)

    with ClusterEnv([Screen] * SLOTS, cluster="inproc:2") as envs:
        envs.reset(seed=settings.seed)
        policy = greedy(envs)
        envs.attach(policy, sync="never", encoding="fp32", seed=settings.seed, runtime="torch", every_state=True)
        with envs.stream(STEPS, SLOTS) as stream:
            theirs = [next(stream) for _ in range(3)]
    with ClusterEnv([Screen] * SLOTS, cluster="inproc:2") as envs:
        observations, _ = envs.reset(seed=settings.seed)
        subject = Inference(envs, observations, greedy(envs), settings, every_state=True)
        with contextlib.closing(subject):
            ours = [subject.next() for _ in range(8)]
    expected, found = by_slot(theirs, 3), by_slot(ours, 3)
    for slot in range(SLOTS):
        for wanted, got in zip(expected[slot], found[slot], strict=False):
            np.testing.assert_array_equal(got["action"], wanted["action"])
            np.testing.assert_allclose(got["logp"], wanted["logp"], atol=1e-4)
            for mine, other in zip(got["states"], wanted["states"], strict=True):
                np.testing.assert_allclose(mine, other, atol=1e-5)
    assert any(np.any(part) for part in ours[-1].states or ())


@pytest.mark.parametrize("lstm", [0, 8])
def test_equal_weights_have_no_ratio(lstm: int) -> None:
    """The learner, which sees an unroll at once, computes what was computed step by step, memory included."""
    with inferring(Screen, config(), lstm=lstm) as (subject, envs):
        module = network(envs, lstm=lstm)
        for _ in range(5):
            batch = subject.next().to(torch)
            assert (unrolls.read(module, batch).logp - batch.logp).abs().max() < 1e-4


def test_what_is_told_beside_the_data() -> None:
    with inferring(Lever, config(stream_slots=4)) as (subject, envs):
        module = network(envs)
        for _ in range(3):
            subject.publish(module)
        batches = [subject.next() for _ in range(8)]
        told = subject.stats()
    assert {batch.N for batch in batches} == {4}
    assert {batch.epoch for batch in batches} == {EPOCH}
    assert batches[-1].version.max() == 3
    np.testing.assert_array_equal(batches[-1].lag, 3 - batches[-1].version)
    assert not batches[-1].divergence.any()
    assert not batches[-1].worker_lost.any()
    assert (told["publishes"], told["version"], told["held"]) == (3, (4, 3), (4, 3))
    assert told["steps"] == 8 * 4 * STEPS
    assert "env" not in told["time_s"]
    assert told["workers_ready"] == len(envs.worker_pids())
    measured = told["inference"]
    assert measured["rows"] >= told["steps"]
    assert 0 < measured["p50_s"] <= measured["p99_s"]


def test_new_weights_act() -> None:
    with inferring(Lever, config()) as (subject, envs):
        module = network(envs)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
        subject.publish(module)
        batch = next(batch for batch in iter(subject.next, None) if (batch.version == 1).all())
        assert not batch.params.any()


def test_a_worker_that_stands_still_starves_nobody(tmp_path: pathlib.Path) -> None:
    """Half of the slots do not answer: batches of inference are never full, and run at their deadline."""
    gate = tmp_path / "gate"
    settings = config(inference_batch=SLOTS, inference_wait_ms=1.0, stream_slots=3)
    with inferring(functools.partial(Gated, str(gate)), settings, cluster="local:2") as (subject, _):
        batches = [subject.next() for _ in range(6)]
        assert sorted({*np.concatenate([batch.slot for batch in batches[2:]]).tolist()}) == [3, 4, 5]
        told = subject.stats()["inference"]
        assert told["full"] < told["batches"]
        gate.touch()
        while 0 not in subject.next().slot:  # the others may be far ahead of a worker that has no core
            pass


def test_a_lost_worker_begins_its_unrolls_afresh() -> None:
    with inferring(Screen, config(stream_slots=3), cluster="local:2", lstm=4) as (subject, envs):
        subject.next()
        os.kill(envs.worker_pids()[1] or 0, signal.SIGKILL)
        lost: list[Batch] = []
        while sum(int(each.worker_lost.sum()) for each in lost) < 3:
            batch = subject.next()
            if batch.worker_lost.any():
                lost.append(batch)
        marked = sorted(slot for batch in lost for slot in batch.slot[batch.worker_lost].tolist())
        assert marked == [3, 4, 5]
        for batch in lost:
            assert batch.first[0, batch.worker_lost].all()
            assert not any(part[batch.worker_lost].any() for part in batch.state)
        assert subject.stats()["restarts"] == 1


class Fragile(Lever):
    """Raises in its seventh step, once."""

    broken = False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count = getattr(self, "count", 0) + 1
        if self.count == 7 and not Fragile.broken:
            Fragile.broken = True
            raise RuntimeError("the lever broke")
        return super().step(action)


def test_an_environment_that_raises_is_truncated() -> None:
    Fragile.broken = False
    with inferring(Fragile, config(num_envs=2), cluster="inproc:1") as (subject, _):
        batches = [subject.next() for _ in range(6)]
    assert not any(batch.worker_lost.any() for batch in batches)
    truncated = [int(batch.truncated.sum()) for batch in batches]
    # Of 30 steps in all of one slot every fourth ends an episode; the one that was cut short begins anew.
    assert sum(len(batch.episodes.returns) for batch in batches) == sum(truncated) - 1


# Ends.


def drain(subject: Inference) -> None:
    """Take batches until something is raised."""
    while True:
        subject.next()


class Broken(Lever):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("no lever there")


def test_what_the_thread_meets_reaches_the_learner_with_its_traceback() -> None:
    with inferring(Broken, config(), on_loss="raise") as (subject, _):
        with pytest.raises(EnvError, match="no lever there") as caught:
            subject.next()
        assert subject.ready  # so that a learner that has data of its own looks, and finds the error
        assert any(frame.name == "_loop" for frame in traceback.extract_tb(caught.value.__traceback__))


def test_a_policy_that_gives_nan_is_told() -> None:
    with inferring(Lever, config()) as (subject, envs):
        module = network(envs)
        with torch.no_grad():
            next(module.parameters()).fill_(torch.nan)
        subject.publish(module)
        with pytest.raises(PolicyError, match=r"gave NaN as params in slot \d, with version 1"):
            drain(subject)


def test_the_learner_holds_inference_back() -> None:
    """Nobody takes batches: then nothing is played, and the environments wait."""
    with inferring(Lever, config(stream_buffers=2)) as (subject, _):
        wait_until(lambda: subject.ready, 30)
        standing = threading.Event()

        def still() -> bool:
            before = subject._meter._batches
            standing.wait(0.2)
            return before == subject._meter._batches > 0

        wait_until(still, 30)
        most = 2 * SLOTS * STEPS * 2  # a batch in the queue, one in the making, and what the lanes hold
        assert subject._meter._rows <= most
        assert subject.next().N == 3


@pytest.mark.parametrize("buffers", [1, 3])
@pytest.mark.parametrize(("size", "slots"), [(6, 6), (4, 5), (5, 2), (1, 1), (2, 6)])
def test_whatever_waits_for_the_learner_has_room(
    size: int, slots: int, buffers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when as much waits as may: no unroll is overwritten, none is missing."""
    settings = config(inference_batch=size, stream_slots=slots, stream_buffers=buffers)
    with inferring(Screen, settings) as (subject, _):
        gather = subject._gathering.gather

        def slowly(unrolls: Any) -> Any:
            """The queue is full again before the batch is copied."""
            wait_until(lambda: len(subject._queue) == subject._most, 30)
            return gather(unrolls)

        monkeypatch.setattr(subject._gathering, "gather", slowly)
        batches = [subject.next() for _ in range(8 * SLOTS // slots)]
    for played in by_slot(batches, 8).values():
        assert len(played) >= 4
        for one, other in itertools.pairwise(played):
            np.testing.assert_array_equal(one["obs"][-1], other["obs"][0])
            assert one["first"][-1] == other["first"][0]


def test_closing_is_prompt_and_final(tmp_path: pathlib.Path) -> None:
    """Also while the environments do not answer, and while nobody takes the batches."""
    gate = tmp_path / "gate"
    with inferring(functools.partial(Gated, str(gate)), config(), cluster="local:2") as (subject, envs):
        subject.next()
        subject.close()
        assert not subject._thread.is_alive()
        subject.close()
        gate.touch()
        envs.reset(seed=1)  # what was under way is given up
        with pytest.raises(ConfigError, match="has been closed"):
            drain(subject)


def test_the_environments_may_be_closed_under_it() -> None:
    with inferring(Lever, config()) as (subject, envs):
        subject.next()
        envs.close()
        with pytest.raises(gymnasium.error.ClosedEnvironmentError):
            drain(subject)


class Words(Lever):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Text(5)


def test_observations_without_a_size_are_refused() -> None:
    with ClusterEnv([Words], cluster="inproc") as envs, pytest.raises(ConfigError, match="observations of fixed size"):
        Inference(envs, None, torch.nn.Linear(1, 1), config(num_envs=1))


def test_a_batch_of_one_slot() -> None:
    with inferring(Lever, config(num_envs=1), cluster="inproc:1") as (subject, _):
        assert [subject.next().slot.tolist() for _ in range(3)] == [[0]] * 3


def test_limits_are_those_of_the_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A worker that hangs past `step_s` is lost like any other; the thread looks for that while it waits."""
    monkeypatch.setattr(inference_module, "_LOOK_S", 0.05)
    gate = tmp_path / "never"
    timeouts = Timeouts(step_s=1.0)
    with inferring(
        functools.partial(Gated, str(gate)), config(stream_slots=3), cluster="local:2", timeouts=timeouts
    ) as (subject, _):
        while not subject.next().worker_lost.any():
            pass
