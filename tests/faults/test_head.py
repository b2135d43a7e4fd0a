"""The head ends in every way a process can: its workers and its fork server always end with it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.faults.kit import LIMIT_S
from tests.faults.scripts import head
from tests.zoo import shared_files, wait_until

if TYPE_CHECKING:
    import pathlib

START = """
envs = ClusterEnv(counting(4), cluster="local:2")
envs.reset(seed=1)
envs.step([1] * 4)
meet("ready")
"""

ENDS = {
    "the end of the script": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("1 / 0", 1),
    "os._exit": ("os._exit(4)", 4),
    "in the middle of a step": ("envs.step_async([1] * 4)", 0),
    "with slots in flight": ("envs.send([1] * 4)", 0),
    "after close": ("envs.close()", 0),
    "with a second batch": ("two = ClusterEnv(counting(2), cluster='local:2')", 0),
}


@pytest.mark.fault("F57")
@pytest.mark.parametrize(("last", "code"), ENDS.values(), ids=ENDS.keys())
def test_without_close(last: str, code: int, tmp_path: pathlib.Path) -> None:
    with head(f"{START}\n{last}\n", tmp_path) as script:
        script.hear("ready")
        assert len(script.family) == 3
        script.answer()
        script.everybody_is_gone()
        assert script.process.returncode == code
        complaints = script.complaints()
        assert ("ZeroDivisionError" in complaints) == (last == "1 / 0")
        assert "Exception ignored" not in complaints
        assert "clusterenv" not in complaints.replace("clusterenv.py", "")


HANG = "envs.set_attr('plan', {2: 'hang'})"
KILLED_AT = {
    "idle": "",
    "in a step": f"{HANG}; say('go'); envs.step([1] * 4)",
    "in close": f"{HANG}; say('go'); envs.step_async([1] * 4); envs.close(timeout=1000)",
}


@pytest.mark.fault("F16")
@pytest.mark.parametrize("then", KILLED_AT.values(), ids=KILLED_AT.keys())
def test_killed_without_warning(then: str, tmp_path: pathlib.Path) -> None:
    shared = shared_files()
    with head(f"{START}\n{then}\ntime.sleep(1000)\n", tmp_path) as script:
        script.hear("ready")
        script.answer()
        if then:
            script.hear("go")
        os.kill(script.process.pid, signal.SIGKILL)
        script.everybody_is_gone()
        assert shared_files() <= shared


def test_killed_while_a_forked_child_of_it_lives_on(tmp_path: pathlib.Path) -> None:
    # A data loader, a logger, a pool: a fork holds copies of every descriptor of the head.
    forks = f"""
    {START.strip().replace(chr(10), chr(10) + "    ")}
    if os.fork() == 0:
        say("child")
        time.sleep(1000)
    time.sleep(1000)
    """
    with head(forks, tmp_path) as script:
        script.hear("ready")
        family = list(script.family)
        script.answer()
        script.hear("child")
        (child,) = [process for process in script.family if process not in family]
        script.family = family
        os.kill(script.process.pid, signal.SIGKILL)
        try:
            script.everybody_is_gone()
            assert child.is_running()
        finally:
            child.kill()


def test_killed_while_it_starts(tmp_path: pathlib.Path) -> None:
    script_text = """
    def slow():
        (folder / "building").touch()
        time.sleep(1000)
    ClusterEnv([slow] * 2, cluster="local:2")
    """
    with head(script_text, tmp_path) as script:
        wait_until((tmp_path / "building").exists, LIMIT_S)
        script.has_family(3)  # whoever builds first may be the only one yet
        os.kill(script.process.pid, signal.SIGKILL)
        script.everybody_is_gone()


def test_killed_while_an_environment_has_children_of_its_own(tmp_path: pathlib.Path) -> None:
    script_text = """
    import subprocess
    def parent():
        subprocess.Popen(["sleep", "1000"])
        return CountingEnv()
    envs = ClusterEnv([parent] * 2, cluster="local:2")
    say("ready")
    time.sleep(1000)
    """
    with head(script_text, tmp_path) as script:
        script.hear("ready")
        assert len(script.family) == 5
        os.kill(script.process.pid, signal.SIGKILL)
        script.everybody_is_gone()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV])
def test_ended_by_a_signal(how: signal.Signals, tmp_path: pathlib.Path) -> None:
    with head(START, tmp_path) as script:
        script.hear("ready")
        os.kill(script.process.pid, how)
        script.everybody_is_gone()
        assert script.process.returncode == -how


# Ctrl-C: the whole process group gets a SIGINT.

MOMENTS = {
    "while it starts": """
def slow():
    (folder / "now").touch()
    time.sleep(1000)
ClusterEnv([slow] * 2, cluster="local:2")
""",
    "in a reset": """
gate, now = str(folder / "gate"), str(folder / "now")
envs = ClusterEnv([lambda: GatedEnv(0, gate, now, in_reset=True)] * 2, cluster="local:2")
envs.reset()
""",
    "in a step": """
envs = ClusterEnv([lambda: GatedEnv(0, str(folder / "gate"), str(folder / "now"))] * 2, cluster="local:2")
envs.reset()
envs.step([1, 1])
""",
    "in recv": """
envs = ClusterEnv([lambda: GatedEnv(0, str(folder / "gate"), str(folder / "now"))] * 2, cluster="local:2")
envs.reset()
envs.send([1, 1])
envs.recv()
""",
    "in close": """
class Stuck(CountingEnv):
    def close(self):
        (folder / "now").touch()
        time.sleep(1000)
envs = ClusterEnv([Stuck] * 2, cluster="local:2")
envs.reset()
envs.close(timeout=1000)
""",
    "between steps": """
envs = ClusterEnv(counting(2), cluster="local:2")
envs.reset()
(folder / "now").touch()
while True:
    envs.step([1, 1])
""",
}


@pytest.mark.fault("F55")
@pytest.mark.parametrize(
    ("name", "times"), [*((name, 1) for name in MOMENTS), ("while it starts", 2), ("in a step", 2), ("in close", 2)]
)
def test_interrupted(name: str, times: int, tmp_path: pathlib.Path) -> None:
    with head(MOMENTS[name], tmp_path) as script:
        wait_until((tmp_path / "now").exists, LIMIT_S)
        script.has_family(3)
        for _ in range(times):
            script.interrupt()
        script.everybody_is_gone()
        assert script.process.returncode == -signal.SIGINT
        assert "KeyboardInterrupt" in script.complaints()


@pytest.mark.fault("F55")
def test_interrupted_at_many_moments_of_its_life(tmp_path: pathlib.Path) -> None:
    # No marks here: the moments are spread over a start, some steps and a close, wherever they fall.
    life = """
    import signal
    say("begin")
    while True:
        envs = ClusterEnv(counting(2), cluster="local:2")
        envs.reset(seed=1)
        for _ in range(20):
            envs.step([1, 1])
        envs.close()
        say("again")
    """
    for number in range(4):
        with head(life, tmp_path) as script:
            script.hear("begin")
            for _ in range(number % 3):
                script.hear("again")
            # What it has at this moment is whatever it has; what it starts after this is its own to end.
            script.note_family()
            presses = script.interrupt_to_the_end()
            script.everybody_is_gone()
            assert script.process.returncode == -signal.SIGINT
            # Anything started and not seen would still hold our pipe open: this read would not end.
            complaints = script.complaints()
            assert "KeyboardInterrupt" in complaints
            assert presses == 1 or "Exception ignored" in complaints, complaints


def test_workers_do_not_see_the_interrupt(tmp_path: pathlib.Path) -> None:
    survives = """
    envs = ClusterEnv(counting(4), cluster="local:2")
    envs.reset(seed=1)
    try:
        say("ready")
        time.sleep(1000)
    except KeyboardInterrupt:
        observations, _, _, truncated, _ = envs.step([1] * 4)
        assert not truncated.any()
        assert observations.tolist() == [[slot, 1] for slot in range(4)]
        say("unharmed")
    """
    with head(survives, tmp_path) as script:
        script.hear("ready")
        script.interrupt()
        script.hear("unharmed")
        script.everybody_is_gone()
        assert script.process.returncode == 0
