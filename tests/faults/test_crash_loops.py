"""Something that fails again and again: an error in the end, and a way out when the cause is gone."""

from __future__ import annotations

import os
import re
import select
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium.vector import AutoresetMode

from clusterenv import EnvError, LaunchError, Timeouts, WorkerLost, WorkersMissing
from clusterenv.node.local import LocalNode
from tests.faults.envs import SwitchedEnv
from tests.faults.kit import LIMIT_S, MODES, actions, batch, hurried, mask, patient, wait_for_answers
from tests.zoo import counting, wait_until

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    from clusterenv import ClusterEnv


class Switch:
    """Turns the misbehaviour of a SwitchedEnv on and off."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.path, self.met = folder / "switch", folder / "switch-met"

    def fns(self, how: str, at: str, slot: int = 1, **kwargs: Any) -> list[Callable[[], Any]]:
        """Four slots, one of which misbehaves while the switch is on."""
        path = os.fspath(self.path)
        fns = counting(4, **kwargs)
        fns[slot] = lambda: SwitchedEnv(slot, how, at, path, **kwargs)
        return fns

    def on(self) -> None:
        self.path.touch()

    def off(self) -> None:
        self.path.unlink()


@pytest.fixture
def switch(tmp_path: pathlib.Path) -> Switch:
    return Switch(tmp_path)


def step_until_it_gives_up(
    envs: ClusterEnv, kind: type[Exception], step: Callable[[], Any] | None = None
) -> tuple[int, Exception]:
    """Step, resetting by hand where nobody else does; return after how many losses it gave up, and the error."""
    for losses in range(20):
        try:
            truncated = (step() if step else envs.step(actions(envs)))[3]
            if envs.autoreset_mode is AutoresetMode.DISABLED and truncated.any():
                envs.reset(options={"reset_mask": truncated})
        except kind as error:
            return losses, error
    raise AssertionError("it never gives up")


def goes_on(envs: ClusterEnv) -> None:
    """After a reset everything works."""
    assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(4)]
    for number in (1, 2, 3):
        observations, _, _, truncated, _ = envs.step(actions(envs))
        assert observations.tolist() == [[slot, number] for slot in range(4)]
        assert not truncated.any()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.value)
@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_raising_in_every_step(mode: AutoresetMode, cluster: str, switch: Switch) -> None:
    with batch(switch.fns("raise", "step"), autoreset_mode=mode, cluster=cluster) as envs:
        envs.reset(seed=1)
        switch.on()
        losses, error = step_until_it_gives_up(envs, EnvError)
        assert losses >= 3, "a few failures are tolerated"
        assert isinstance(error, EnvError)
        assert isinstance(error, ValueError)
        assert (error.slot, error.seed) == (1, 2)
        assert "slot 1 (seed 2, step " in str(error)
        assert "raised in step again and again, in fresh environments too: ValueError: planned error" in str(error)
        switch.off()
        goes_on(envs)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.value)
@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_raising_in_every_autoreset(mode: AutoresetMode, cluster: str, switch: Switch) -> None:
    with batch(switch.fns("raise", "reset", length=2), autoreset_mode=mode, cluster=cluster) as envs:
        envs.reset(seed=1)
        switch.on()
        _, error = step_until_it_gives_up(envs, EnvError)
        assert isinstance(error, EnvError)
        assert isinstance(error, ValueError)
        assert (error.slot, error.seed) == (1, 2)
        assert re.search(r"slot 1 \(seed 2, step \d+\) raised in .*: ValueError: planned error", str(error))
        switch.off()
        assert envs.reset(seed=1)[0].tolist() == [[slot, 0] for slot in range(4)]
        assert envs.step(actions(envs))[0].tolist() == [[slot, 1] for slot in range(4)]


@pytest.mark.fault("F07")
@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
@pytest.mark.parametrize("on_loss", ["restart", "raise"])
def test_raising_in_every_reset(cluster: str, on_loss: str, switch: Switch) -> None:
    with batch(switch.fns("raise", "reset"), cluster=cluster, on_loss=on_loss) as envs:
        envs.reset(seed=1)
        switch.on()
        for _ in range(2):
            with pytest.raises(ValueError, match="planned error") as caught:
                envs.reset(seed=7)
            error = caught.value
            assert isinstance(error, EnvError)
            assert (error.slot, error.seed, error.step) == (1, 8, 0)
        switch.off()
        goes_on(envs)


@pytest.mark.parametrize("cluster", ["local:2", "inproc:2"])
def test_raising_in_the_first_reset(cluster: str, switch: Switch) -> None:
    switch.on()
    with batch(switch.fns("raise", "reset"), cluster=cluster) as envs:
        with pytest.raises(EnvError, match="raised in reset"):
            envs.reset(seed=1)
        switch.off()
        goes_on(envs)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_a_worker_that_dies_in_every_step(mode: AutoresetMode, switch: Switch) -> None:
    with batch(switch.fns("kill", "step"), autoreset_mode=mode) as envs:
        envs.reset(seed=1)
        switch.on()
        if mode is AutoresetMode.DISABLED:
            # Every reset by name starts a new story; it is the user who goes on.
            for _ in range(5):
                assert envs.step(actions(envs))[3].tolist() == [True, True, False, False]
                envs.reset(options=mask(envs, 0, 1))
        else:
            losses, error = step_until_it_gives_up(envs, WorkerLost)
            assert losses >= 3
            assert isinstance(error, WorkerLost)
            assert (error.worker, error.slot) == (0, 1)
            assert "SIGKILL" in error.cause
        switch.off()
        goes_on(envs)


def test_a_worker_that_dies_in_every_reset(switch: Switch) -> None:
    with batch(switch.fns("exit", "reset")) as envs:
        envs.reset(seed=1)
        switch.on()
        with pytest.raises(WorkerLost, match="exit code 3"):
            envs.reset(seed=1)
        switch.off()
        goes_on(envs)


def test_a_worker_that_dies_in_every_autoreset(switch: Switch) -> None:
    with batch(switch.fns("exit", "reset", length=2), autoreset_mode="SameStep") as envs:
        envs.reset(seed=1)
        switch.on()
        envs.step(actions(envs))
        with pytest.raises(WorkerLost, match="exit code 3"):
            envs.step(actions(envs))
        switch.off()
        envs.reset(seed=1)
        assert envs.step(actions(envs))[0].tolist() == [[slot, 1] for slot in range(4)]


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_replacement_that_cannot_be_built(how: str, switch: Switch) -> None:
    with batch(switch.fns(how, "build")) as envs:
        envs.reset(seed=1)
        switch.on()
        pid = envs.worker_pids()[0]
        assert pid is not None
        os.kill(pid, 9)
        envs.step(actions(envs))  # the loss itself is told first
        with pytest.raises((EnvError, WorkerLost)) as caught:
            envs.step(actions(envs))
        assert "planned error" in str(caught.value) or "exit code 3" in str(caught.value)
        with pytest.raises((EnvError, WorkerLost)):
            envs.reset(seed=1)
        switch.off()
        goes_on(envs)


def test_a_replacement_that_is_never_built(switch: Switch) -> None:
    limits = patient()
    with batch(switch.fns("hang", "build"), timeouts=limits) as envs:
        envs.reset(seed=1)
        switch.on()
        object.__setattr__(limits, "start_s", 0.3)  # the first start may take its time on a busy machine
        pid = envs.worker_pids()[0]
        assert pid is not None
        os.kill(pid, 9)
        envs.step(actions(envs))
        with pytest.raises((LaunchError, WorkerLost), match="not built within"):
            envs.step(actions(envs))
        switch.off()
        object.__setattr__(limits, "start_s", LIMIT_S)
        goes_on(envs)


def test_a_first_start_that_is_never_built(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    switch.on()
    replies = LocalNode.replies

    def once_the_other_is_built(node: LocalNode, workers: Any, limit_s: Any) -> Any:
        select.select([node.descriptors()[1]], [], [], LIMIT_S)
        return replies(node, workers, limit_s)

    monkeypatch.setattr(LocalNode, "replies", once_the_other_is_built)
    with (
        pytest.raises(WorkersMissing, match=r"1 of 2 workers were ready .* Worker 0: no answer within 0.5 s") as caught,
        batch(switch.fns("hang", "build"), timeouts=Timeouts(start_s=0.5)),
    ):
        pass
    assert (caught.value.arrived, caught.value.expected, caught.value.waited_s) == (1, 2, 0.5)


def test_a_first_start_that_dies(switch: Switch) -> None:
    switch.on()
    with (
        pytest.raises(LaunchError, match=r"worker 0 \(slots 0 to 1\) ended .*: its process ended with exit code 3"),
        batch(switch.fns("exit", "build")),
    ):
        pass


@pytest.mark.fault("F05")
def test_hanging_in_every_step(switch: Switch) -> None:
    with batch(switch.fns("hang", "step"), timeouts=patient()) as envs:
        envs.reset(seed=1)
        switch.on()

        def step() -> Any:
            switch.met.unlink(missing_ok=True)
            envs.step_async(actions(envs))
            wait_for_answers(envs, 1)
            # After a loss the first worker resets, and answers; in the step after that it hangs.
            wait_until(lambda: switch.met.exists() or not envs._engine.node.wait([0], 0.0), LIMIT_S)
            with hurried(envs, seconds=0.2):
                return envs.step_wait()

        _, error = step_until_it_gives_up(envs, WorkerLost, step)
        assert isinstance(error, WorkerLost)
        assert (error.slot, error.cause) == (1, "no answer to a step within 0.2 s")
        switch.off()
        goes_on(envs)


def test_a_slot_that_fails_once_in_a_while_goes_on_for_ever() -> None:
    plan = dict.fromkeys(range(12, 200, 12), "raise")
    with batch(counting(2, {1: plan}, length=1000)) as envs:
        envs.reset(seed=1)
        truncations = sum(int(envs.step(actions(envs))[3].sum()) for _ in range(100))
        assert truncations == 7, "every 12 steps of its life and one for the reset"
