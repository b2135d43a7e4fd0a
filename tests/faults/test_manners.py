"""Environments with bad manners: what they do to their process stays in it."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import psutil
import pytest

from clusterenv import ClusterEnv, EnvError, Timeouts
from tests.faults.envs import HABITS, RudeEnv
from tests.faults.kit import LIMIT_S, actions, batch, each, ended
from tests.zoo import CountingEnv, wait_until

if TYPE_CHECKING:
    import pathlib


def umask() -> int:
    current = os.umask(0o77)
    os.umask(current)
    return current


@pytest.mark.fault("F11")
@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_harms_neither_the_values_nor_the_head_nor_the_end(
    habit: str, capfd: pytest.CaptureFixture[str]
) -> None:
    random.seed(5)
    np.random.seed(5)
    before = (os.getcwd(), umask(), random.getstate(), os.environ.copy())
    fns = [lambda: RudeEnv(0, habit), lambda: CountingEnv(1), lambda: CountingEnv(2), lambda: CountingEnv(3)]
    envs = ClusterEnv(fns, cluster="local:2", timeouts=Timeouts(close_s=2.0))
    workers = [psutil.Process(pid) for pid in envs.worker_pids() if pid is not None]
    try:
        envs.reset(seed=1)
        for number in range(1, 4):
            observations, _, _, truncated, _ = envs.step(actions(envs))
            assert observations.tolist() == [[slot, number] for slot in range(4)]
            assert not truncated.any()
    finally:
        envs.close()
    wait_until(lambda: all(ended(worker) for worker in workers), LIMIT_S)
    assert (os.getcwd(), umask(), random.getstate(), os.environ.copy()) == before
    capfd.readouterr()


def test_a_replacement_starts_in_a_clean_process(tmp_path: pathlib.Path) -> None:
    # The fork server has seen nothing of what the lost one did to its process.
    with batch(each(2, RudeEnv, "changes the folder")) as envs:
        envs.reset(seed=1)
        envs.step(actions(envs))
        assert envs.call("cwd") == ("/", "/")
        pid = envs.worker_pids()[0]
        assert pid is not None
        os.kill(pid, 9)
        envs.step(actions(envs))
        assert envs.call("cwd")[0] == os.getcwd()


class ForkingEnv(CountingEnv):
    """Forks in its second step; the child raises."""

    def step(self, action: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 2 and os.fork() == 0:
            raise RuntimeError("in the child")
        return super().step(action)


def test_a_forked_child_that_raises_is_no_second_worker(capfd: pytest.CaptureFixture[str]) -> None:
    with ClusterEnv([lambda: ForkingEnv(0), lambda: CountingEnv(1)], cluster="local:1", on_loss="raise") as envs:
        envs.reset(seed=1)
        (pid,) = envs.worker_pids()
        for number in range(1, 6):
            assert envs.step(actions(envs))[0].tolist() == [[slot, number] for slot in range(2)]
        wait_until(lambda: all(ended(child) for child in psutil.Process(pid).children()), LIMIT_S)
    assert "RuntimeError: in the child" in capfd.readouterr().err


@pytest.mark.parametrize("cluster", ["local:1", "inproc"])
def test_an_environment_that_needs_a_display_fails_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    """On a host without one, as a batch job has it; at the first picture, which is that of the reset."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    monkeypatch.delenv("DISPLAY", raising=False)
    with (
        batch([lambda: gymnasium.make("CartPole-v1", render_mode="human")] * 2, cluster=cluster) as envs,
        pytest.raises(EnvError, match=r"slot 0.*x11 not available"),
    ):
        envs.reset(seed=1)


def test_two_environments_of_one_worker_draw_from_their_own_streams() -> None:
    with batch(each(4, RudeEnv, "seeds the global generators")) as envs:
        envs.reset(seed=[1, 1, 2, 2])
        draws = envs.call("draw")
        assert draws[0] == draws[1]
        assert draws[2] == draws[3]
        assert draws[0] != draws[2]


def test_what_environments_print_reaches_the_terminal_of_the_head(capfd: pytest.CaptureFixture[str]) -> None:
    with batch([lambda: RudeEnv(0, "prints control characters")]) as envs:
        envs.reset(seed=1)
        envs.step(actions(envs))
    out, err = capfd.readouterr()
    assert "from the environment" in out + err


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_an_info_with_a_cycle_is_delivered(cluster: str) -> None:
    with batch(each(2, RudeEnv, "returns an info with a cycle"), cluster=cluster) as envs:
        envs.reset(seed=1)
        infos: dict[str, Any] = envs.step(actions(envs))[4]
        assert infos["cycle"][0][0] is infos["cycle"][0]


def test_a_huge_info_is_delivered_whole() -> None:
    with batch(each(2, RudeEnv, "returns a huge info")) as envs:
        envs.reset(seed=1)
        for _ in range(2):
            infos = envs.step(actions(envs))[4]
            assert [len(value) for value in infos["huge"]] == [64 * 2**20] * 2
