"""Blocks in the head's own process: Ctrl-C inside an environment, as a user presses it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from clusterenv import ClusterEnv
from clusterenv.node.inproc import InprocNode
from tests.env.policies import Linear
from tests.faults.interrupts import interrupted_at
from tests.faults.kit import batch, each
from tests.zoo import CountingEnv, counting

if TYPE_CHECKING:
    from collections.abc import Sequence


class Pressed(CountingEnv):
    """Ctrl-C comes in the first step of slot 2."""

    pressed = False

    def step(self, action: Any) -> Any:
        """Be interrupted once, then count."""
        if self.slot == 2 and not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


class PressedText(Pressed):
    """The same with actions that fit no array."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.action_space = spaces.Text(1)

    def step(self, action: Any) -> Any:
        """The letter as a number."""
        return super().step("abcd".index(action))


@pytest.mark.parametrize("cluster", ["inproc", "inproc:2"])
@pytest.mark.parametrize(
    ("kind", "actions"), [(Pressed, [0, 1, 2, 0]), (PressedText, ("a", "b", "c", "a"))], ids=["array", "text"]
)
class TestInterrupted:
    """Every slot steps once, with its own action."""

    def test_in_a_step(self, cluster: str, kind: type[Pressed], actions: Sequence[Any]) -> None:
        with batch(each(4, kind), cluster=cluster) as envs:
            envs.reset(seed=0)
            with pytest.raises(KeyboardInterrupt):
                envs.step(actions)
            observations, rewards, *_ = envs.step_wait()
            assert observations.tolist() == [[0, 1], [1, 1], [2, 1], [3, 1]]
            assert rewards.tolist() == [0, 1, 2, 0]
            assert envs.step(actions)[0].tolist() == [[0, 2], [1, 2], [2, 2], [3, 2]]

    def test_in_a_send(self, cluster: str, kind: type[Pressed], actions: Sequence[Any]) -> None:
        with batch(each(4, kind), cluster=cluster) as envs:
            envs.reset(seed=0)
            with pytest.raises(KeyboardInterrupt):
                envs.send(actions)
            observations, rewards, _, _, infos = envs.recv(min_slots=4)
            assert infos["env_id"].tolist() == [0, 1, 2, 3]
            assert observations.tolist() == [[0, 1], [1, 1], [2, 1], [3, 1]]
            assert rewards.tolist() == [0, 1, 2, 0]

    def test_in_a_send_and_more_is_sent(self, cluster: str, kind: type[Pressed], actions: Sequence[Any]) -> None:
        with batch(each(4, kind), cluster=cluster) as envs:
            envs.reset(seed=0)
            with pytest.raises(KeyboardInterrupt):
                envs.send(actions[1:], [1, 2, 3])
            envs.send(actions[:1], [0])
            observations, _, _, _, infos = envs.recv(min_slots=4)
            assert sorted(infos["env_id"].tolist()) == [0, 1, 2, 3]
            assert sorted(observations.tolist()) == [[0, 1], [1, 1], [2, 1], [3, 1]]


def test_a_vectorised_block_is_asked_again() -> None:
    envs = ClusterEnv.from_blocks(lambda count: SyncVectorEnv(each(count, Pressed)), 3, cluster="inproc")
    envs.reset(seed=0)
    with pytest.raises(KeyboardInterrupt):
        envs.step(np.ones(3, np.int64))
    assert envs.step_wait()[1].tolist() == [1, 1, 1]
    envs.close()


def test_orders_of_a_stream_whose_end_was_interrupted_are_forgotten_by_the_next() -> None:
    with batch(counting(2, length=100), cluster="inproc") as envs:
        envs.reset(seed=0)
        envs.attach(Linear(choices=3), seed=0)
        stream = envs.stream(2, slots=2)
        next(stream)
        with interrupted_at(InprocNode, "tell", 1):
            stream.close()
        envs.reset(seed=0)
        with envs.stream(3, slots=2) as batches:
            assert next(batches).obs[:, 0, 1].tolist() == [0, 1, 2, 3]
            node = envs._engine.node
            assert isinstance(node, InprocNode)
            buffers = [order[0] for _, order in node._orders]
            assert len(set(buffers)) == len(buffers), "no buffer is to be filled twice"
