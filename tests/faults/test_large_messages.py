"""Messages to workers that are larger than what a socket holds: a worker that sleeps is woken to read them."""

from __future__ import annotations

import contextlib
import multiprocessing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import clusterenv
from clusterenv.node.board import Board
from clusterenv.transport import channel
from clusterenv.transport.channel import Channel
from tests.env.kit import SpaceEnv, TextSpace
from tests.env.policies import Linear
from tests.faults.interrupts import interrupted_at
from tests.faults.kit import LIMIT_S, batch, each, patient
from tests.zoo import CountingEnv, counting, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from clusterenv import ClusterEnv

# More than the sockets of the head hold in these tests, and than those of the workers do anywhere.
LARGE, HUGE = 2**20, 24 * 2**20


@pytest.fixture(autouse=True)
def small_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that allows no larger ones; workers keep theirs."""
    monkeypatch.setattr(channel, "_BUFFER_BYTES", 2**16)


class SizeEnv(CountingEnv):
    """Tells the size of what it is given."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Tell that of the options."""
        observation, infos = super().reset(seed=seed)
        return observation, infos | {"size": len(options["map"]) if options else 0}

    def echo(self, value: Any, note: pathlib.Path | None = None) -> Any:
        """What it got."""
        if note is not None:
            note.touch()
        return value


def text_env() -> SpaceEnv:
    """Actions fit no array; each is told in an info."""
    return SpaceEnv(TextSpace(), TextSpace(), length=100)


def set_map(envs: ClusterEnv) -> list[int]:
    """What every slot has then."""
    envs.set_attr("map", bytes(LARGE))
    return [len(value) for value in envs.get_attr("map")]


ACTS: dict[str, Callable[[ClusterEnv], Any]] = {
    "set_attr": set_map,
    "reset": lambda envs: envs.reset(seed=1, options={"map": bytes(LARGE)})[1]["size"].tolist(),
    "call": lambda envs: [len(value) for value in envs.call("echo", bytes(LARGE))],
}


@pytest.mark.parametrize("name", ACTS)
def test_arguments(name: str) -> None:
    with batch(each(4, SizeEnv), timeouts=patient(), on_loss="raise") as envs:
        envs.reset(seed=1)
        pids = envs.worker_pids()
        assert ACTS[name](envs) == [LARGE] * 4
        assert envs.worker_pids() == pids


def test_on_another_host() -> None:
    envs = clusterenv.make_vec("CartPole-v1", num_envs=2, cluster="tcp:nodes=1,workers=2", on_loss="raise")
    with contextlib.closing(envs):
        envs.reset(seed=1)
        envs.set_attr("map", np.zeros(HUGE, np.uint8))
        assert [len(table) for table in envs.get_attr("map")] == [HUGE] * 2


def test_a_policy() -> None:
    policy = Linear(choices=3)
    policy.table = np.zeros(LARGE)  # type: ignore[attr-defined]
    with batch(counting(4), timeouts=patient(), on_loss="raise") as envs:
        envs.reset(seed=0)
        envs.attach(policy, seed=0)
        assert envs.rollout(2).obs[:, :, 1].tolist() == [[0] * 4, [1] * 4, [2] * 4]


@pytest.mark.parametrize("sent", [False, True], ids=["step", "send"])
def test_actions_that_fit_no_array(sent: bool) -> None:
    with batch([text_env] * 4, timeouts=patient(), on_loss="raise") as envs:
        envs.reset(seed=1)
        for size in (10, LARGE, 10):
            words = tuple(str(slot) * size for slot in range(4))
            if sent:
                envs.send(words)
            infos = (envs.recv(4) if sent else envs.step(words))[4]
            order = infos["env_id"].tolist() if sent else range(4)
            assert [infos["got"][row] == f"str:{words[slot]!r}" for row, slot in enumerate(order)] == [True] * 4


def test_to_a_worker_that_is_sending_itself() -> None:
    """It reads its next actions when its report has been read: nobody may wait for the other."""
    with batch([text_env] * 2, cluster="local:1", timeouts=patient(), on_loss="raise") as envs:
        envs.reset(seed=1)
        envs.send(("a" * HUGE,), slots=[0])
        arena = envs._engine.arena
        wait_until(lambda: bool(arena.have[0] == arena.want[0]), LIMIT_S)  # it is about to tell
        envs.send(("b" * HUGE,), slots=[1])
        infos = envs.recv(2)[4]
        assert [len(got) for got in infos["got"]] == [HUGE + len("str:''")] * 2
        assert sorted(got[5] for got in infos["got"]) == ["a", "b"]


def test_to_a_worker_whose_last_answer_was_given_up(tmp_path: pathlib.Path) -> None:
    with batch(each(2, SizeEnv), cluster="local:1", timeouts=patient(), on_loss="raise") as envs:
        envs.reset(seed=1)
        envs.call_async("echo", bytes(HUGE), tmp_path / "note")
        with pytest.raises(multiprocessing.TimeoutError):
            envs.call_wait(timeout=0)
        wait_until((tmp_path / "note").exists, LIMIT_S)
        assert envs.reset(seed=1, options={"map": bytes(HUGE)})[1]["size"].tolist() == [HUGE] * 2


# The first worker is asked in the middle of its message, after the first part and before the second.
MOMENTS = [(Channel, "_send_some", 1), (Board, "ask", 1), (Channel, "_send_some", 2), (Board, "ask", 2)]
IN_A_MESSAGE = pytest.mark.parametrize(
    "moment", MOMENTS, ids=["before it", "before one is asked", "when one is asked", "before the next is asked"]
)


@IN_A_MESSAGE
@pytest.mark.parametrize("name", ACTS)
def test_ctrl_c_in_a_message(moment: tuple[type, str, int], name: str) -> None:
    with batch(each(4, SizeEnv), timeouts=patient()) as envs:
        envs.reset(seed=1)
        with interrupted_at(*moment):
            ACTS[name](envs)
        assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(4)]
        assert envs.step([1] * 4)[0].tolist() == [[slot, 1] for slot in range(4)]
        assert ACTS[name](envs) == [LARGE] * 4


@IN_A_MESSAGE
@pytest.mark.parametrize("waited", [False, True], ids=["reset", "step_wait"])
def test_ctrl_c_in_actions_that_fit_no_array(moment: tuple[type, str, int], waited: bool) -> None:
    words = tuple(str(slot) * LARGE for slot in range(4))
    with batch([text_env] * 4, timeouts=patient()) as envs:
        envs.reset(seed=1)
        with interrupted_at(*moment):
            envs.step(words)
        if waited:  # the worker that has half of its message is lost, and nobody else
            _, _, _, truncated, infos = envs.step_wait(LIMIT_S / 2)
            assert truncated.tolist() in ([True] * 2 + [False] * 2, [False] * 2 + [True] * 2)
            told = [got == f"str:{word!r}" for got, word in zip(infos["got"], words, strict=True)]
            assert told == (~truncated).tolist()
        envs.reset(seed=1)
        infos = envs.step(words)[4]
        assert [got == f"str:{word!r}" for got, word in zip(infos["got"], words, strict=True)] == [True] * 4
        assert envs.restarts == 1
