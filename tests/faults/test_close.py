"""`close()` always works: twice, after any fault, in the middle of anything; and nothing of ours is left."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded

from clusterenv import ClusterEnv, ClusterEnvError, Timeouts, WorkerLost, make_vec
from clusterenv.testing import echo_module, echo_slots
from tests.faults.envs import SlowCloseEnv
from tests.faults.kit import LIMIT_S, Gate, OnceEnv, actions, batch, each, ended, kill
from tests.zoo import counting, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable


def family(envs: ClusterEnv) -> list[psutil.Process]:
    """The fork server and the workers of this batch."""
    workers = [psutil.Process(pid) for pid in envs.worker_pids() if pid is not None]
    return [*workers, *{worker.parent() for worker in workers}]


def all_ended(processes: list[psutil.Process]) -> None:
    wait_until(lambda: all(ended(process) for process in processes), LIMIT_S)


@pytest.mark.fault("F57")
def test_closing_ends_everything_and_may_be_repeated() -> None:
    envs = ClusterEnv(counting(4), cluster="local:2")
    processes = family(envs)
    assert len(processes) == 3
    envs.reset(seed=1)
    for _ in range(3):
        envs.close()
    all_ended(processes)


def test_closing_before_the_first_reset() -> None:
    envs = ClusterEnv(counting(4), cluster="local:2")
    processes = family(envs)
    envs.close()
    all_ended(processes)


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_every_use_after_closing_says_so(cluster: str) -> None:
    envs = ClusterEnv(counting(4), cluster=cluster)
    envs.reset(seed=1)
    envs.close()
    uses: list[Callable[[], Any]] = [
        lambda: envs.reset(seed=1),
        lambda: envs.reset_async(),
        lambda: envs.reset_wait(),
        lambda: envs.step(actions(envs)),
        lambda: envs.step_async(actions(envs)),
        lambda: envs.step_wait(),
        lambda: envs.send(actions(envs)),
        lambda: envs.recv(),
        lambda: envs.call("double", 1.0),
        lambda: envs.call_async("double", 1.0),
        lambda: envs.call_wait(),
        lambda: envs.get_attr("slot"),
        lambda: envs.set_attr("slot", 1),
        lambda: envs.render(),
        lambda: envs.np_random,
        lambda: envs.np_random_seed,
    ]
    for use in uses:
        with pytest.raises(ClosedEnvironmentError, match="after a call to `close"):
            use()


def test_after_closing_there_are_no_workers_to_name() -> None:
    envs = ClusterEnv(counting(4), cluster="local:2")
    envs.close()
    with contextlib.suppress(ClosedEnvironmentError):
        assert envs.worker_pids() == [None, None]


def test_the_environments_are_closed(tmp_path: pathlib.Path) -> None:
    limits = Timeouts(close_s=LIMIT_S)
    envs = ClusterEnv(each(4, SlowCloseEnv, str(tmp_path)), cluster="local:2", timeouts=limits)
    envs.reset(seed=1)
    envs.close()
    assert sorted(os.listdir(tmp_path)) == ["closed-0", "closed-1", "closed-2", "closed-3"]


@pytest.mark.parametrize("pending", ["step", "send", "call", "reset"])
def test_with_an_answer_unread_the_environments_are_closed_too(pending: str, tmp_path: pathlib.Path) -> None:
    # Recorders write their files in close(): an unread message on the channel must not cut them short.
    limits = Timeouts(close_s=LIMIT_S)
    envs = ClusterEnv(each(4, SlowCloseEnv, str(tmp_path), infos=True), cluster="local:2", timeouts=limits)
    envs.reset(seed=1)
    begin: dict[str, Callable[[], Any]] = {
        "step": lambda: envs.step_async(actions(envs)),
        "send": lambda: envs.send(actions(envs)),
        "call": lambda: envs.call_async("double", 1.0),
        "reset": lambda: envs.reset_async(),
    }
    begin[pending]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs.close()
    assert sorted(os.listdir(tmp_path)) == ["closed-0", "closed-1", "closed-2", "closed-3"]


@pytest.mark.fault("F57")
@pytest.mark.parametrize("pending", ["step", "call", "reset"])
def test_while_something_is_pending_it_warns_and_works(pending: str, tmp_path: pathlib.Path) -> None:
    gate = Gate(tmp_path)
    envs = ClusterEnv(
        [gate.env(slot, in_reset=pending == "reset") for slot in range(4)],
        cluster="local:2",
        timeouts=Timeouts(close_s=0.2),
    )
    processes = family(envs)
    if pending == "reset":
        envs.reset_async(seed=1)
    else:
        envs.reset(seed=1)
    if pending == "step":
        envs.step_async(actions(envs))
    elif pending == "call":
        envs.call_async("wait_at_gate", 1)
    gate.wait()
    with pytest.warns(UserWarning, match=f"pending call to `{pending}`"):
        envs.close()
    all_ended(processes)


def test_with_warnings_as_errors_it_works_too() -> None:
    envs = ClusterEnv(counting(4), cluster="local:2")
    processes = family(envs)
    envs.reset(seed=1)
    envs.step_async(actions(envs))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with contextlib.suppress(UserWarning):
            envs.close()
    all_ended(processes)


def test_while_slots_are_in_flight(tmp_path: pathlib.Path) -> None:
    gate = Gate(tmp_path)
    envs = ClusterEnv([gate.env(slot) for slot in range(4)], cluster="local:2", timeouts=Timeouts(close_s=0.2))
    processes = family(envs)
    envs.reset(seed=1)
    envs.send(actions(envs))
    gate.wait()
    envs.close()
    all_ended(processes)


@pytest.mark.parametrize("how", ["hang", "raise", "exit", "kill", "segfault"])
def test_when_an_environment_does_not_close(how: str, tmp_path: pathlib.Path) -> None:
    fns = counting(4)
    fns[1] = lambda: OnceEnv(1, how, str(tmp_path / "note"), at="close")
    # Who hangs is ended at the limit; before that it must have come as far as that, however busy the machine.
    envs = ClusterEnv(fns, cluster="local:2", timeouts=Timeouts(close_s=5.0 if how == "hang" else LIMIT_S))
    processes = family(envs)
    envs.reset(seed=1)
    envs.close()
    all_ended(processes)
    assert (tmp_path / "note").exists()


def test_terminate_does_not_wait_for_the_environments(tmp_path: pathlib.Path) -> None:
    fns = counting(4)
    fns[1] = lambda: OnceEnv(1, "hang", str(tmp_path / "note"), at="close")
    envs = ClusterEnv(fns, cluster="local:2", timeouts=Timeouts(close_s=None))
    processes = family(envs)
    envs.close(terminate=True)
    all_ended(processes)
    assert not (tmp_path / "note").exists()


@pytest.mark.parametrize("timeout", [-1.0, math.nan, "x", [1], 0], ids=["negative", "NaN", "text", "list", "zero"])
def test_a_bad_timeout_leaves_nothing_running_in_the_end(timeout: Any) -> None:
    envs = ClusterEnv(counting(2), cluster="local:2")
    processes = family(envs)
    with contextlib.suppress(ClusterEnvError):
        envs.close(timeout=timeout)
    envs.close()
    all_ended(processes)


@pytest.mark.parametrize("victim", ["a worker", "all workers", "the fork server", "a stopped worker"])
def test_after_a_death(victim: str) -> None:
    envs = ClusterEnv(counting(4), cluster="local:2", timeouts=Timeouts(close_s=0.3))
    processes = family(envs)
    envs.reset(seed=1)
    if victim == "the fork server":
        processes[-1].kill()
        wait_until(lambda: ended(processes[-1]), LIMIT_S)
    elif victim == "a stopped worker":
        kill(envs, 0, signal.SIGSTOP)
    else:
        for worker in range(2 if victim == "all workers" else 1):
            kill(envs, worker)
    envs.close()
    envs.close()
    all_ended(processes)


def test_without_its_fork_server_a_batch_raises_and_closes() -> None:
    with batch(counting(4)) as envs:
        envs.reset(seed=1)
        server = family(envs)[-1]
        server.kill()
        wait_until(lambda: ended(server), LIMIT_S)
        with pytest.raises(ClusterEnvError, match="fork server"):
            envs.step(actions(envs))
        with pytest.raises((ClusterEnvError, ResetNeeded)):
            envs.step(actions(envs))
        for _ in range(2):
            with pytest.raises(ClusterEnvError, match="fork server"):
                envs.reset(seed=1)


def test_after_an_error(tmp_path: pathlib.Path) -> None:
    fns = counting(4)
    fns[1] = lambda: OnceEnv(1, "kill", str(tmp_path / "note"))
    envs = ClusterEnv(fns, cluster="local:2", on_loss="raise")
    processes = family(envs)
    envs.reset(seed=1)
    with pytest.raises(WorkerLost):
        envs.step(actions(envs))
    envs.close()
    all_ended(processes)


def test_while_a_replacement_is_being_built() -> None:
    envs = ClusterEnv(counting(4), cluster="local:2")
    envs.reset(seed=1)
    kill(envs, 0)
    envs.step(actions(envs))  # starts a replacement and does not wait for it
    processes = family(envs)
    envs.close()
    all_ended(processes)


@pytest.mark.fault("F57")
@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_a_forgotten_batch_closes_itself(cluster: str) -> None:
    envs = ClusterEnv(counting(4), cluster=cluster)
    processes = family(envs) if cluster == "local:2" else []
    envs.reset(seed=1)
    reference = weakref.ref(envs)
    del envs
    gc.collect()
    assert reference() is None, "nothing keeps it alive"
    all_ended(processes)


def test_a_forgotten_batch_closes_itself_in_the_middle_of_a_step() -> None:
    envs = ClusterEnv(counting(4), cluster="local:2")
    processes = family(envs)
    envs.reset(seed=1)
    envs.step_async(actions(envs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del envs
        gc.collect()
    all_ended(processes)


def test_leaving_a_with_block_by_an_error_closes() -> None:
    processes: list[psutil.Process] = []

    def leave() -> None:
        with ClusterEnv(counting(4), cluster="local:2") as envs:
            processes.extend(family(envs))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    all_ended(processes)


@pytest.mark.fault("F57")
def test_in_a_forked_child_it_leaves_the_parent_its_workers() -> None:
    with batch(counting(4)) as envs:
        envs.reset(seed=1)
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                envs.close()
                status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert envs.step(actions(envs))[0].tolist() == [[slot, 1] for slot in range(4)]


def test_from_another_thread_it_ends_a_step_that_hangs(tmp_path: pathlib.Path) -> None:
    gate = Gate(tmp_path)
    limits = Timeouts(close_s=0.3, step_s=2 * LIMIT_S)
    envs = ClusterEnv([gate.env(slot) for slot in range(4)], cluster="local:2", timeouts=limits)
    processes = family(envs)
    envs.reset(seed=1)
    outcome: list[BaseException | None] = []

    def step() -> None:
        try:
            envs.step(actions(envs))
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    gate.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs.close()
    all_ended(processes)
    thread.join(LIMIT_S)
    hung = thread.is_alive()
    thread.join()
    assert not hung, "the step goes on waiting for workers that are gone"
    assert isinstance(outcome[0], ClosedEnvironmentError)


def steps(envs: ClusterEnv) -> None:
    while True:
        envs.step(actions(envs))


def receives(envs: ClusterEnv) -> None:
    envs.send(actions(envs))
    while True:
        infos = envs.recv()[4]
        envs.send(actions(envs)[infos["env_id"]], infos["env_id"])


def calls(envs: ClusterEnv) -> None:
    while True:
        envs.call("render_mode")


def plays(envs: ClusterEnv) -> None:
    envs.attach(echo_module(), sync="never")
    while True:
        envs.rollout(50)


@pytest.mark.parametrize("use", [steps, receives, calls, plays])
@pytest.mark.parametrize("cluster", ["inproc:2", "local:2", "tcp:nodes=2,workers=1"])
def test_while_another_thread_uses_the_batch(cluster: str, use: Callable[[ClusterEnv], None]) -> None:
    """Its call comes to an end first, and says why; nothing is pulled from under it."""
    envs = make_vec("clusterenv.testing:Echo-v0", 4, cluster=cluster, slot_kwargs=echo_slots(4))
    envs.reset(seed=1)
    outcome: list[BaseException] = []

    def work() -> None:
        try:
            use(envs)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: envs._engine.gather.steps_ever(0) > 20 or use is calls, LIMIT_S)
    envs.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    (error,) = outcome
    assert isinstance(error, ClosedEnvironmentError)


@pytest.mark.parametrize("cluster", ["inproc:2", "local:2", "tcp:nodes=2,workers=1"])
def test_a_stream_that_another_thread_reads_ends(cluster: str) -> None:
    envs = make_vec("clusterenv.testing:Echo-v0", 4, cluster=cluster, slot_kwargs=echo_slots(4))
    envs.reset(seed=1)
    envs.attach(echo_module(), sync="never")
    read: list[int] = []
    ended_well = threading.Event()

    def work() -> None:
        for played in envs.stream(5, 4):
            read.append(played.N)
        ended_well.set()

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: len(read) > 3, LIMIT_S)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs.close()
    thread.join(LIMIT_S)
    assert ended_well.is_set()


DAEMON = """
import sys, threading, time
import gymnasium
import clusterenv

envs = clusterenv.make_vec("CartPole-v1", 4, cluster=sys.argv[1])
envs.reset(seed=1)
stepped = threading.Event()

def work():
    try:
        while True:
            envs.step([0, 0, 0, 0])
            stepped.set()
    except gymnasium.error.ClosedEnvironmentError:
        print("closed", flush=True)

threading.Thread(target=work, daemon=True).start()
stepped.wait()
"""


@pytest.mark.parametrize("cluster", ["local:2", "tcp:nodes=1,workers=1"])
def test_the_end_of_a_script_whose_daemon_thread_steps(cluster: str) -> None:
    words = [sys.executable, "-c", DAEMON, cluster]
    over = subprocess.run(words, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    assert (over.returncode, over.stdout, over.stderr) == (0, "closed\n", "")
