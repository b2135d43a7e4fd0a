"""Ctrl-C in a call, and the batch goes on being used: as in a notebook, or under a handler that saves and continues."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from gymnasium.error import NoAsyncCallError

from clusterenv import WorkerLost
from clusterenv.node.board import Board
from clusterenv.node.exchange import Exchange
from clusterenv.node.local import LocalNode
from clusterenv.node.supervisor import Supervisor
from clusterenv.transport.arena import Word
from clusterenv.transport.channel import Channel
from clusterenv.worker.block import EnvBlock
from clusterenv.worker.loop import _IDLE_S
from tests.faults.envs import TextEnv
from tests.faults.interrupts import interrupted_at, interrupted_when
from tests.faults.kit import LIMIT_S, Gate, GatedEnv, OnceEnv, actions, batch, each, ended, kill, lost, patient
from tests.zoo import counting, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from clusterenv import ClusterEnv


@pytest.fixture
def gate(tmp_path: pathlib.Path) -> Gate:
    return Gate(tmp_path)


def goes_on(envs: ClusterEnv) -> None:
    """After a reset, values are those of their own step, slot and call."""
    count = envs.num_envs
    assert envs.reset(seed=3)[0].tolist() == [[slot, 0] for slot in range(count)]
    for number in (1, 2):
        assert envs.step(actions(envs))[0].tolist() == [[slot, number] for slot in range(count)]
        assert envs.call("double", float(number)) == (2.0 * number,) * count
        assert envs.get_attr("slot") == tuple(range(count))
    assert envs.get_attr("last_seed") == tuple(range(3, 3 + count))


def gated(gate: Gate, **kwargs: Any) -> list[Callable[[], GatedEnv]]:
    """Four slots that know the gate; slot 1 is the one that waits there."""
    fns = [gate.env(slot, waits=-1, patient=False) for slot in range(4)]
    fns[1] = gate.env(1, **kwargs)
    return fns


def test_in_a_step(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        envs.reset(seed=1)
        with interrupted_when(gate.wait):
            envs.step(actions(envs))
        gate.open()
        goes_on(envs)


def test_in_a_step_that_is_then_waited_for(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        envs.reset(seed=1)
        with interrupted_when(gate.wait):
            envs.step(actions(envs))
        gate.open()
        assert envs.step_wait()[0].tolist() == [[slot, 1] for slot in range(4)]
        goes_on(envs)


def said(envs: ClusterEnv, step: int, words: str) -> tuple[str, ...]:
    """What texts have been told to every slot."""
    return tuple(f"slot {slot} step {step} {words}{slot}" for slot in range(envs.num_envs))


ASKING = [(Exchange, "_send_packed", 1), (Exchange, "_send_packed", 2), (Board, "ask", 1)]


@pytest.mark.parametrize("then", ["step_wait", "reset"])
@pytest.mark.parametrize("moment", ASKING, ids=["before the first", "between two", "before they are asked"])
def test_while_actions_are_sent_that_fit_no_array(moment: tuple[type, str, int], then: str) -> None:
    """Each slot gets its own action, once, and nobody is lost."""
    with batch(each(4, TextEnv), timeouts=patient()) as envs:
        envs.reset(seed=1)
        pids = envs.worker_pids()
        with interrupted_at(*moment):
            envs.step(("a0", "a1", "a2", "a3"))
        if then == "step_wait":
            assert envs.step_wait(LIMIT_S / 3)[0] == said(envs, 1, "a")
        envs.reset(seed=2)
        assert envs.step(("b0", "b1", "b2", "b3"))[0] == said(envs, 1, "b")
        assert envs.worker_pids() == pids


def test_in_process_while_actions_are_taken_that_fit_no_array() -> None:
    with batch(each(4, TextEnv), cluster="inproc:2") as envs:
        envs.reset(seed=1)
        with interrupted_at(EnvBlock, "step", 2):
            envs.step(("a0", "a1", "a2", "a3"))
        assert envs.step_wait()[0] == said(envs, 1, "a")


def test_in_recv(gate: Gate) -> None:
    with batch(gated(gate)) as envs:
        envs.reset(seed=1)
        envs.send(actions(envs))
        with interrupted_when(gate.wait):
            envs.recv(min_slots=4)
        gate.open()
        observations, _, _, _, infos = envs.recv(min_slots=4)
        assert sorted(map(tuple, observations.tolist())) == [(slot, 1) for slot in range(4)]
        assert sorted(infos["env_id"].tolist()) == [0, 1, 2, 3]
        goes_on(envs)


@pytest.mark.parametrize("what", ["reset", "call"])
def test_when_some_have_answered_and_some_have_not(what: str, gate: Gate) -> None:
    # The other worker answers at once. Its answer must not be forgotten, or it is waited for and the worker is lost.
    with batch(gated(gate, in_reset=True, waits=-1), timeouts=patient()) as envs:
        if what == "call":
            gate.open()
            envs.reset(seed=1)
            gate.close()
        pids = envs.worker_pids()
        with interrupted_when(gate.wait):
            if what == "reset":
                envs.reset(seed=1)
            else:
                envs.call("wait_at_gate", 7)
        gate.open()
        goes_on(envs)
        assert envs.worker_pids() == pids, "nobody was lost"


@pytest.mark.parametrize("waited_for", [False, True], ids=["given up", "waited for"])
def test_in_a_call(gate: Gate, waited_for: bool) -> None:
    with batch([gate.env(slot, waits=-1) for slot in range(4)]) as envs:
        envs.reset(seed=1)
        with interrupted_when(gate.wait):
            envs.call("wait_at_gate", 7)
        gate.open()
        if waited_for:
            assert envs.call_wait() == (7, 7, 7, 7)
        goes_on(envs)


def test_in_set_attr_no_later_call_takes_its_reply(gate: Gate) -> None:
    with batch([gate.env(slot, waits=-1) for slot in range(4)]) as envs:
        envs.reset(seed=1)
        with interrupted_when(gate.wait):
            envs.set_attr("at_gate", 5)
        gate.open()
        # Whether it is refused until a reset or simply right: never the reply to something else.
        with contextlib.suppress(Exception):
            assert envs.call("double", 2.0) == (4.0,) * 4
        goes_on(envs)
        assert envs.call("double", 2.0) == (4.0,) * 4


def test_while_a_replacement_is_built(tmp_path: pathlib.Path, gate: Gate) -> None:
    note = str(tmp_path / "note")
    fns = counting(4)
    fns[1] = gate.env(1, in_build=note, waits=-1)
    with batch(fns) as envs:
        envs.reset(seed=1)
        kill(envs, 0)
        (tmp_path / "note").touch()  # from here on a build waits at the gate
        envs.step(actions(envs))
        with interrupted_when(gate.wait):
            envs.step(actions(envs))
        gate.open()
        goes_on(envs)


@pytest.mark.parametrize("sent", [False, True], ids=["step", "send"])
def test_between_asking_a_worker_and_waking_it(monkeypatch: pytest.MonkeyPatch, sent: bool) -> None:
    with batch(counting(2), timeouts=patient()) as envs:
        envs.reset(seed=1)
        arena, node = envs._engine.arena, envs._engine.node
        wait_until(lambda: bool(arena.column(Word.SLEEPS).all()), LIMIT_S)
        with monkeypatch.context() as patch:
            patch.setattr("clusterenv.node.board.fence", interrupt)
            with pytest.raises(KeyboardInterrupt):
                (envs.send if sent else envs.step)(actions(envs))
        # By themselves they would look up after seconds.
        if sent:
            assert len(envs.recv(2, timeout=_IDLE_S / 2)[1]) == 2
        else:
            assert node.wait([0, 1], _IDLE_S / 2) == []
            assert envs.step_wait()[0].tolist() == [[0, 1], [1, 1]]
        goes_on(envs)


def interrupt() -> None:
    """As Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("killed", [[1], [0, 1]], ids=["one worker", "two workers"])
@pytest.mark.parametrize(
    ("owner", "name"),
    [(LocalNode, "replace"), (Supervisor, "start"), (Channel, "send_later")],
    ids=["before the old one is gone", "before the new one is there", "before it has its orders"],
)
def test_while_a_lost_worker_is_replaced(owner: type, name: str, killed: list[int]) -> None:
    lives = [float(slot // 2 not in killed) for slot in range(4)]
    with batch(counting(4), timeouts=patient()) as envs:
        envs.reset(seed=1)
        for worker in killed:
            kill(envs, worker)
        with interrupted_at(owner, name, 1):
            envs.step(actions(envs))
        _, rewards, _, truncated, infos = envs.step_wait()
        assert rewards.tolist() == lives
        assert truncated.tolist() == lost(infos, 4) == [not alive for alive in lives]
        for steps in (0, 1):
            observations, _, _, truncated, infos = envs.step(actions(envs))
            assert observations.tolist() == [[slot, steps + 2 * lives[slot]] for slot in range(4)]
            assert not truncated.any()
            assert not any(lost(infos, 4))
        assert envs.restarts == len(killed)


IN_A_RESET = pytest.mark.parametrize(
    ("name", "turn"),
    [("ready", 1), ("post", 1), ("replies", 2)],
    ids=["while they are built", "before they are reset", "while they are reset"],
)


@IN_A_RESET
def test_while_lost_slots_are_reset_in_the_same_step(name: str, turn: int) -> None:
    with batch(counting(4, infos=True), autoreset_mode="SameStep", timeouts=patient()) as envs:
        envs.reset(seed=1)
        envs.step(actions(envs))
        kill(envs, 1)
        with interrupted_at(LocalNode, name, turn):
            envs.step(actions(envs))
        check_begun_anew(envs)


@IN_A_RESET
def test_while_slots_that_were_lost_before_are_reset_in_the_same_step(name: str, turn: int) -> None:
    with batch(counting(4, infos=True), autoreset_mode="SameStep", timeouts=patient()) as envs:
        envs.reset(seed=1)
        envs.step(actions(envs))
        kill(envs, 1)
        with pytest.raises(WorkerLost):
            envs.call("double", 1.0)
        with interrupted_at(LocalNode, name, turn):
            envs.step(actions(envs))
        if name == "ready":  # nobody was asked yet
            with pytest.raises(NoAsyncCallError):
                envs.step_wait()
            envs.step_async(actions(envs))
        check_begun_anew(envs)


def check_begun_anew(envs: ClusterEnv) -> None:
    """A step comes to its end in which slots 2 and 3 were lost, and those of the other worker not."""
    observations, rewards, _, truncated, infos = envs.step_wait()
    assert observations.tolist() == [[0, 2], [1, 2], [2, 0], [3, 0]]
    assert rewards.tolist() == [1, 1, 0, 0]
    assert truncated.tolist() == lost(infos, 4) == [False, False, True, True]
    assert infos["_action"].tolist() == [True, True, False, False], "what the others said has not been forgotten"
    assert [last.tolist() for last in infos["final_obs"][2:]] == [[2, 1], [3, 1]], "the last that was seen of them"
    assert infos["_started"].tolist() == [False, False, True, True]
    assert envs.step(actions(envs))[0].tolist() == [[0, 3], [1, 3], [2, 1], [3, 1]]
    assert envs.restarts == 1


def test_in_close_a_second_close_ends_everything(tmp_path: pathlib.Path) -> None:
    note = tmp_path / "note"
    fns = counting(4)
    fns[1] = lambda: OnceEnv(1, "hang", str(note), at="close")
    with batch(fns) as envs:
        envs.reset(seed=1)
        workers = [psutil.Process(pid) for pid in envs.worker_pids() if pid is not None]
        with interrupted_when(lambda: wait_until(note.exists, LIMIT_S)):
            envs.close(timeout=LIMIT_S)
        envs.close()
        wait_until(lambda: all(ended(worker) for worker in workers), LIMIT_S)
