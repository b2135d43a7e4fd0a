"""A station: what a worker can be asked for, and what an actor learns of steps and resets by others."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from clusterenv.errors import ConfigError
from clusterenv.transport.fragments import FragmentSpec
from clusterenv.transport.shared import Field, SharedArrays
from clusterenv.worker.station import Station
from clusterenv.worker.vector_block import VectorBlock
from tests.env.policies import Echo, Memory
from tests.worker.kit import ScriptedEnv, bound, ends_after, observed
from tests.worker.stage import stage


def test_nothing_can_be_played_without_a_policy() -> None:
    with bound(ScriptedEnv) as block:
        station = Station(block.block, block.arena, 0)
        memory = SharedArrays.create([Field("progress", (1, 16), "<i8")])
        spec = FragmentSpec(1, 1, 1, 1, (), (), None, 0, False)  # type: ignore[arg-type]
        for ask in (lambda: station.play(0, False, False), lambda: station.share(spec, memory)):
            with pytest.raises(ConfigError, match="no policy is attached"):
                ask()
        station.detach()
        assert memory.fd == -1, "also what came too early is let go"


def test_a_vectorised_block_takes_no_policy() -> None:
    with bound(ScriptedEnv) as block:
        station = Station(VectorBlock(CartPoleVectorEnv, range(2)), block.arena, 0)
        memory = SharedArrays.create([Field("counts", (1,), "<i8")])
        with pytest.raises(ConfigError, match="vectorised block"):
            station.attach(None, memory)  # type: ignore[arg-type]
        memory.close()
        station.close()


def test_detach_gives_the_memory_back() -> None:
    with stage(Echo()) as playing:
        playing.play()
        weights, fragments = playing.weights.memory, playing.fragments.memory
        assert os.readlink(f"/proc/self/fd/{weights.fd}").startswith("/memfd:clusterenv")
        playing.station.detach()
        assert (weights.fd, fragments.fd) == (-1, -1)
        playing.station.detach()
        with pytest.raises(ConfigError, match="no policy is attached"):
            playing.play()


def test_a_fragment_tells_how_long_there_was_nothing_to_play(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    with stage(Echo(), steps=4) as playing:
        assert playing.play()[0].idle_s == 0.0, "before the first there was nothing to wait for"
        now = 103.0
        assert playing.play()[0].idle_s == 3.0
        assert playing.play()[0].idle_s == 0.0
        now = 200.0
        playing.attach(4)
        assert playing.play()[0].idle_s == 0.0, "the time before the policy came does not count"


def test_other_memory_takes_the_place_of_the_first() -> None:
    with stage(Echo(), steps=4) as playing:
        playing.play()
        before = playing.fragments.memory
        playing.share(2)
        assert before.fd == -1
        fragment, columns = playing.play()
        assert fragment.steps == 2
        assert columns.obs[0][:, 0, 0].tolist() == [4, 5, 6], "the episodes go on"


def test_close_closes_the_environments() -> None:
    with stage(Echo()) as playing:
        playing.station.close()
        assert [env.closes for env in playing.bound.made] == [1, 1]
        assert playing.weights.memory.fd == -1


def test_calls_reach_the_environments() -> None:
    with stage(Echo()) as playing:
        playing.station.set_attr([1], "mark", [7])
        assert playing.station.call([1], "mark", (), {}) == [7]


def test_a_reset_may_have_options_for_each_row() -> None:
    with bound(lambda: ScriptedEnv(on_reset=lambda env: (observed(0, 0), {"got": env.options[-1]})), count=3) as block:
        station = Station(block.block, block.arena, 0)
        report = station.reset([2, 0], [5, 6], [{"level": 1}, None])
        assert report.infos == [(2, {"got": {"level": 1}}), (0, {"got": None})]
        assert [env.seeds for env in block.made] == [[6], [], [5]]
        assert len(station.reset([0, 1], [None, None], {"level": 2}).infos) == 2
        assert [env.options for env in block.made] == [[None, {"level": 2}], [{"level": 2}], [{"level": 1}]]


# What others do.


def test_after_steps_of_others_an_episode_has_no_known_return() -> None:
    with stage(Memory(), ends_after(5)) as playing:
        playing.steps()
        _, columns = playing.play(0)
        assert columns.obs[0][0].tolist() == [[1, 1], [1, 1]]
        assert not columns.first[0].any()
        assert columns.state[0].tolist() == [[0.0], [0.0]]
        assert columns.terminated[3].all()
        assert columns.episode_length[3].tolist() == [0, 0]
        playing.play(1)
        _, columns = playing.play(0)
        assert columns.episode_length[0].tolist() == [5, 5], "the next one is whole"


def test_after_a_reset_by_others_an_episode_begins() -> None:
    with stage(Memory(), ends_after(5)) as playing:
        playing.play(0)
        playing.reset(0, 1)
        _, columns = playing.play(1)
        assert columns.first[0].all()
        assert columns.action[:, 0].tolist() == [1, 2, 3, 4]
        _, columns = playing.play(0)
        assert columns.episode_length[0].tolist() == [5, 5]


def test_a_reset_of_one_row_leaves_the_others_as_they_are() -> None:
    with stage(Memory(), ends_after(6)) as playing:
        playing.play(0)
        playing.reset(1)
        _, columns = playing.play(1)
        assert columns.first[0].tolist() == [False, True]
        assert columns.state[0].tolist() == [[4.0], [0.0]]
        assert columns.action.T.tolist() == [[5, 6, 1, 2], [1, 2, 3, 4]]
        assert columns.episode_length[1].tolist()[0] == 6
        _, columns = playing.play(0)
        assert columns.episode_length[1].tolist()[1] == 6


def test_steps_and_then_a_reset_of_one_row() -> None:
    with stage(Memory(), ends_after(6)) as playing:
        playing.play(0)
        playing.steps()
        playing.reset(0)
        _, columns = playing.play(1)
        assert columns.first[0].tolist() == [True, False]
        assert columns.state[0].tolist() == [[0.0], [0.0]]
        assert columns.episode_length[0, 1] == 0, "of the stepped row nothing is known"


def test_a_reset_and_then_steps() -> None:
    with stage(Memory(), ends_after(6)) as playing:
        playing.play(0)
        playing.reset(0, 1)
        playing.steps()
        _, columns = playing.play(1)
        assert not columns.first[0].any()
        np.testing.assert_array_equal(columns.obs[0][0][:, 0], [1, 1])


def test_steps_of_some_rows_leave_the_others_as_they_are() -> None:
    with stage(Memory(), ends_after(6)) as playing:
        playing.steps(0)
        _, columns = playing.play(0)
        assert columns.first[0].tolist() == [False, True]
        playing.steps(1)
        _, columns = playing.play(1)
        assert columns.state[0].tolist() == [[4.0], [0.0]]
        assert columns.terminated.T.tolist() == [[True, False, False, False]] * 2
        assert columns.episode_length[0].tolist() == [0, 0], "each was stepped by others once"


def test_another_policy_finds_episodes_where_they_begin() -> None:
    with stage(Memory(), ends_after(4), steps=4) as playing:
        playing.play()
        playing.steps(1)
        playing.attach(4)
        _, columns = playing.play()
        assert columns.obs[0][0][:, 0].tolist() == [0, 1]
        assert columns.first[0].tolist() == [True, False]
        assert columns.episode_length[3, 0] == 4
        assert columns.episode_length[2, 1] == 0, "it was stepped by others"


def test_another_policy_finds_other_episodes_in_their_middle() -> None:
    with stage(Memory(), ends_after(6), steps=4) as playing:
        playing.play()
        playing.attach(4)
        _, columns = playing.play()
        assert not columns.first[0].any()
        assert columns.episode_length[1].tolist() == [0, 0]
