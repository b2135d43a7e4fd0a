"""close: twice, after a fault, with a call under way; and what works afterwards, which is nothing."""

from __future__ import annotations

import gc
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError

from clusterenv import ClusterEnv, ConfigError, Timeouts
from clusterenv.node.local import LocalNode
from tests.env.kit import LIMIT_S, gated
from tests.faults.kit import wait_for_answers
from tests.zoo import CountingEnv, counting, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., ClusterEnv]


HANG_S = 60.0


class ClosingEnv(CountingEnv):
    """Writes a file when it is closed; may take its time or raise."""

    def __init__(self, slot: int, folder: str, how: str = "") -> None:
        super().__init__(slot)
        self.folder, self.how = folder, how

    def close(self) -> None:
        """Leave a mark."""
        if self.how == "raise":
            raise OSError("will not close")
        if self.how == "hang":
            time.sleep(HANG_S)
        (pathlib.Path(self.folder) / f"closed-{self.slot}").touch()


def closing(num_envs: int, folder: pathlib.Path, how: dict[int, str] | None = None) -> list[Any]:
    return [_closing(slot, str(folder), (how or {}).get(slot, "")) for slot in range(num_envs)]


def _closing(slot: int, folder: str, how: str) -> Callable[[], ClosingEnv]:
    return lambda: ClosingEnv(slot, folder, how)


def closed_slots(folder: pathlib.Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("closed-*"))


def processes(envs: ClusterEnv) -> list[int]:
    return [pid for pid in envs.worker_pids() if pid is not None and pid != os.getpid()]


def gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


def test_close_closes_every_environment(make: Make, tmp_path: pathlib.Path) -> None:
    envs = make(closing(4, tmp_path))
    pids = processes(envs)
    assert not envs.closed
    envs.close()
    assert envs.closed
    assert closed_slots(tmp_path) == [0, 1, 2, 3]
    assert all(gone(pid) for pid in pids)


def test_close_twice(make: Make) -> None:
    envs = make(counting(2))
    envs.close()
    envs.close()
    envs.close(timeout=1, terminate=True)
    envs.close_extras()
    assert envs.closed


def test_nothing_works_after_close(make: Make) -> None:
    envs = make(counting(2))
    envs.reset()
    envs.close()
    calls: list[Callable[[], Any]] = [
        envs.reset,
        envs.reset_async,
        envs.reset_wait,
        lambda: envs.step([0, 0]),
        lambda: envs.step_async([0, 0]),
        envs.step_wait,
        lambda: envs.send([0, 0]),
        envs.recv,
        lambda: envs.call("slot"),
        lambda: envs.call_async("slot"),
        envs.call_wait,
        lambda: envs.get_attr("slot"),
        lambda: envs.set_attr("slot", 1),
        envs.render,
        lambda: envs.np_random,
        lambda: envs.np_random_seed,
    ]
    message = re.escape("Trying to operate on `ClusterEnv`, after a call to `close()`.")
    for call in calls:
        with pytest.raises(ClosedEnvironmentError, match=message):
            call()


def test_what_is_not_about_the_environments_works_after_close(make: Make) -> None:
    envs = make(counting(2))
    envs.close()
    assert repr(envs) == "ClusterEnv(num_envs=2)"
    assert envs.num_envs == 2
    assert envs.action_space.sample().shape == (2,)
    assert envs.metadata["render_modes"] == ["rgb_array"]


def test_a_context_closes(cluster: str, tmp_path: pathlib.Path) -> None:
    with ClusterEnv(closing(2, tmp_path), cluster=cluster) as envs:
        assert isinstance(envs, ClusterEnv)
        envs.reset()
    assert envs.closed
    assert closed_slots(tmp_path) == [0, 1]


def test_a_context_closes_after_an_error(cluster: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ZeroDivisionError), ClusterEnv(closing(2, tmp_path), cluster=cluster) as envs:
        _ = 1 / 0
    assert envs.closed
    assert closed_slots(tmp_path) == [0, 1]


def test_an_environment_that_raises_in_close_harms_no_other(
    make: Make, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    envs = make(closing(4, tmp_path, {0: "raise", 3: "raise"}))
    envs.close()
    caplog.clear()  # the traceback in the log would keep the environments alive
    assert closed_slots(tmp_path) == [1, 2]


def test_an_environment_that_hangs_in_close_is_ended(make_local: Make, tmp_path: pathlib.Path) -> None:
    # Long enough for the other worker to close its own, however busy the machine; the first would take a minute.
    envs = make_local(closing(4, tmp_path, {0: "hang"}), timeouts=Timeouts(close_s=5.0))
    pids = processes(envs)
    began = time.monotonic()
    envs.close()
    assert time.monotonic() - began < HANG_S
    assert closed_slots(tmp_path) == [2, 3], "the other worker has closed its own"
    assert all(gone(pid) for pid in pids)


def test_close_takes_a_limit(make_local: Make, tmp_path: pathlib.Path) -> None:
    # Without the limit that is given here, it would be the minute that they hang.
    envs = make_local(closing(2, tmp_path, {0: "hang", 1: "hang"}), timeouts=Timeouts(close_s=2 * HANG_S))
    began = time.monotonic()
    envs.close(timeout=0.2)
    assert time.monotonic() - began < HANG_S


def test_terminate_does_not_wait(make_local: Make, tmp_path: pathlib.Path) -> None:
    # Without the limit that is given here, it would be the minute that they hang.
    envs = make_local(closing(2, tmp_path, {0: "hang", 1: "hang"}), timeouts=Timeouts(close_s=2 * HANG_S))
    pids = processes(envs)
    began = time.monotonic()
    envs.close(terminate=True)
    assert time.monotonic() - began < HANG_S
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize("name", ["reset", "step", "call"])
def test_close_while_a_call_is_pending_warns(make: Make, name: str) -> None:
    envs = make(counting(2))
    envs.reset()
    starts: dict[str, Callable[[], None]] = {
        "reset": envs.reset_async,
        "step": lambda: envs.step_async([1, 1]),
        "call": lambda: envs.call_async("slot"),
    }
    starts[name]()
    pids = processes(envs)
    message = f"Calling `close` while waiting for a pending call to `{name}` to complete"
    with pytest.warns(UserWarning, match=message):
        envs.close()
    assert envs.closed
    assert all(gone(pid) for pid in pids)


def test_close_waits_for_what_is_pending(
    make_local: Make, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories = [*gated(1, tmp_path / "gate", [0]), *closing(2, tmp_path)[1:]]
    envs = make_local(factories)
    envs.reset()
    envs.step_async([1, 1])
    wait_for_answers(envs, 1)
    replies = LocalNode.replies

    def once_it_has_closed(node: LocalNode, workers: Any, limit_s: Any) -> Any:
        wait_until(lambda: closed_slots(tmp_path) == [1], LIMIT_S)
        return replies(node, workers, limit_s)

    # When slot 0 has used up the limit, little is left for slot 1: too little on a busy machine.
    monkeypatch.setattr(LocalNode, "replies", once_it_has_closed)
    with pytest.warns(UserWarning, match="pending call to `step`"):
        envs.close(timeout=0.2)
    assert closed_slots(tmp_path) == [1], "slot 0 never came back, slot 1 was closed in order"


def test_who_is_idle_closes_while_another_is_waited_for(make_local: Make, tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    envs = make_local([*gated(1, gate, [0]), *closing(2, tmp_path)[1:]])
    envs.reset()
    envs.step_async([1, 1])
    wait_for_answers(envs, 1)

    def open_once_the_other_has_closed() -> None:
        wait_until(lambda: closed_slots(tmp_path) == [1], LIMIT_S)
        gate.touch()

    opener = threading.Thread(target=open_once_the_other_has_closed)
    opener.start()
    began = time.monotonic()
    with pytest.warns(UserWarning, match="pending call to `step`"):
        envs.close(timeout=LIMIT_S)
    assert time.monotonic() - began < LIMIT_S
    opener.join()


def test_close_closes_also_where_warnings_are_errors(make_local: Make) -> None:
    envs = make_local(counting(2))
    envs.reset()
    envs.step_async([1, 1])
    pids = processes(envs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            envs.close()
        except UserWarning as warning:
            assert "pending" in str(warning)  # noqa: PT017
    assert all(gone(pid) for pid in pids)


def test_close_with_slots_in_flight(make_local: Make, tmp_path: pathlib.Path) -> None:
    envs = make_local(gated(4, tmp_path / "gate", [1]))
    envs.reset()
    envs.send([1] * 4)
    pids = processes(envs)
    envs.close(timeout=0.2)
    assert all(gone(pid) for pid in pids)


def test_close_after_a_killed_worker(make_local: Make, tmp_path: pathlib.Path) -> None:
    envs = make_local(closing(4, tmp_path))
    envs.reset()
    pids = processes(envs)
    os.kill(pids[0], 9)
    wait_until(lambda: gone(pids[0]), LIMIT_S)
    envs.close()
    assert closed_slots(tmp_path) == [2, 3]
    assert gone(pids[1])


def test_close_after_an_error_of_an_environment(make: Make) -> None:
    envs = make(counting(2, {0: {1: "raise"}}), on_loss="raise")
    envs.reset()
    with pytest.raises(ValueError, match="planned"):
        envs.step([0, 0])
    envs.close()
    assert envs.closed


def test_a_batch_that_is_forgotten_takes_its_workers_along(cluster: str) -> None:
    envs = ClusterEnv(counting(2), cluster=cluster)
    pids, alive = processes(envs), weakref.ref(envs)
    del envs
    gc.collect()
    assert alive() is None
    assert all(gone(pid) for pid in pids)


def test_a_batch_that_could_not_be_made_leaves_nothing(cluster: str) -> None:
    factories: list[Any] = [CountingEnv, lambda: CountingEnv(lenght=3)]  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="lenght"):
        ClusterEnv(factories, cluster=cluster)  # the fixture of all tests looks for what is left


@pytest.mark.parametrize(
    "end",
    ["", "raise SystemExit(3)", "raise ValueError", "envs.step_async([0, 0])", "import os; os.kill(os.getpid(), 9)"],
    ids=["end", "exit", "error", "pending", "killed"],
)
def test_a_script_that_never_closes_leaves_no_process(tmp_path: pathlib.Path, end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import clusterenv\n"
        "envs = clusterenv.make_vec('CartPole-v1', num_envs=2, cluster='local:2')\n"
        "envs.reset(seed=0)\n"
        "print(*envs.worker_pids(), flush=True)\n"
        f"{end}\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    for pid in pids:
        wait_until(lambda pid=pid: gone(pid), LIMIT_S)  # type: ignore[misc]


def test_a_child_of_the_head_cannot_use_the_batch(make: Make) -> None:
    envs = make(counting(2))
    envs.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries may have threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            envs.step([0, 0])
        except ConfigError as error:
            code = 0 if "belongs to process" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    np.testing.assert_array_equal(envs.step([1, 1])[1], [1, 1])
