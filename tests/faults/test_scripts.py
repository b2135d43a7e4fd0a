"""Scripts as people write them: no main guard, lambdas, closures and classes of their own, from any folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.faults.kit import LIMIT_S
from tests.faults.scripts import head, running

if TYPE_CHECKING:
    import pathlib

PLAIN = """
import gymnasium, numpy as np, clusterenv
LENGTH = 3

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 100, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, bonus):
        self.bonus = bonus
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}
    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), self.bonus + helper(action), self.steps >= LENGTH, False, {}

def helper(action):
    return 10.0 * action

def factory(bonus):
    return lambda: Mine(bonus)

envs = clusterenv.ClusterEnv([factory(number) for number in range(4)], cluster="local:2")
envs.reset(seed=1)
print(envs.step([0, 1, 0, 1])[1].tolist())
for _ in range(3):
    done = envs.step([0, 0, 0, 0])[2]
    print(done.tolist())
envs.close()
"""
SAYS = ["[0.0, 11.0, 2.0, 13.0]", "[False, False, False, False]", str([True] * 4), str([False] * 4)]


def heard(lines: list[str]) -> list[str]:
    return [line.strip() for line in lines]


@pytest.mark.parametrize("way", ["a file", "from another folder", "-c", "standard input", "with a guard"])
def test_a_script_of_its_own(way: str, tmp_path: pathlib.Path) -> None:
    path, stdin, elsewhere = tmp_path / "script.py", None, tmp_path / "elsewhere"
    elsewhere.mkdir()
    text = PLAIN
    if way == "with a guard":
        before, _, after = PLAIN.partition("envs = ")
        body = "\n".join(f"    {line}" for line in f"envs = {after}".splitlines())
        text = f'{before}\nif __name__ == "__main__":\n{body}\n'
    path.write_text(text)
    command = [os.fspath(path)]
    if way == "-c":
        command = ["-c", text]
    elif way == "standard input":
        command, stdin = ["-"], text
    with running(command, elsewhere if way == "from another folder" else tmp_path, stdin) as script:
        assert script.process.stdout is not None
        assert heard(script.process.stdout.readlines()) == SAYS, script.complaints()
        script.everybody_is_gone()
        assert script.process.returncode == 0
        assert script.complaints() == ""


def test_a_script_is_not_run_again_by_its_workers(tmp_path: pathlib.Path) -> None:
    with head("say('once')\nenvs = ClusterEnv(counting(4), cluster='local:2')\nenvs.close()\n", tmp_path) as script:
        assert script.process.stdout is not None
        assert heard(script.process.stdout.readlines()) == ["once"]
        script.everybody_is_gone()


def test_a_module_beside_the_script_is_found_by_the_workers(tmp_path: pathlib.Path) -> None:
    (tmp_path / "beside.py").write_text("from tests.zoo import CountingEnv\nclass Mine(CountingEnv):\n    pass\n")
    text = """
    import beside
    envs = ClusterEnv([beside.Mine] * 2, cluster="local:2")
    say(envs.reset()[0].tolist())
    envs.close()
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with head(text, tmp_path) as script:
        script.hear("[[0.0, 0.0], [0.0, 0.0]]")
        script.everybody_is_gone()


def test_a_closure_over_what_cannot_travel_is_refused_before_anything_starts(tmp_path: pathlib.Path) -> None:
    text = """
    import threading, psutil
    lock = threading.Lock()
    def make():
        with lock:
            return CountingEnv()
    try:
        ClusterEnv([make] * 2, cluster="local:2")
    except clusterenv.ResultError as error:
        say("lock" in str(error), "inside the factory" in str(error), psutil.Process().children())
    """
    with head(text, tmp_path) as script:
        script.hear("True True []")
        script.everybody_is_gone()


def test_a_head_with_threads_starts_workers(tmp_path: pathlib.Path) -> None:
    text = """
    import threading
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(4)]
    for thread in threads: thread.start()
    envs = ClusterEnv(counting(4), cluster="local:2")
    envs.reset(seed=1)
    say(envs.step([1] * 4)[0].tolist())
    stop.set()
    """
    with head(text, tmp_path) as script:
        script.hear("[[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]")
        script.everybody_is_gone()
        assert script.process.returncode == 0


def test_a_batch_made_in_a_thread_and_used_in_another(tmp_path: pathlib.Path) -> None:
    text = """
    import threading
    made = []
    thread = threading.Thread(target=lambda: made.append(ClusterEnv(counting(4), cluster="local:2")))
    thread.start()
    thread.join()
    made[0].reset(seed=1)
    say(made[0].step([1] * 4)[0].tolist())
    """
    # The parent of the fork server is the head, not one of its threads: the end of that thread ends nothing.
    with head(text, tmp_path) as script:
        script.hear("[[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]")
        script.everybody_is_gone()


def test_a_head_without_standard_streams(tmp_path: pathlib.Path) -> None:
    text = f"""
    os.close(0)
    envs = ClusterEnv(counting(4), cluster="local:2")
    envs.reset(seed=1)
    for fd in (1, 2):
        os.close(fd)
    (folder / "done").write_text(str(envs.step([1] * 4)[0].tolist()))
    envs.close()
    assert {LIMIT_S} > 0
    """
    with head(text, tmp_path) as script:
        script.everybody_is_gone()
        assert (tmp_path / "done").read_text() == "[[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 1.0]]"


@pytest.mark.fault("F42")
def test_too_few_descriptors_is_said_with_the_limit(tmp_path: pathlib.Path) -> None:
    text = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    try:
        ClusterEnv(counting(64), cluster="local:64")
    except clusterenv.ClusterEnvError as error:
        say("40" in str(error), "descriptor" in str(error) or "open files" in str(error))
    """
    with head(text, tmp_path) as script:
        script.hear("True True")
        script.everybody_is_gone()


def test_a_space_larger_than_memory_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    # Under a limit of its own, so that a check that comes too late does not hurt the machine.
    text = """
    import resource
    from gymnasium import spaces
    class Huge(CountingEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.MultiBinary([100_000, 100_000])
    resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
    try:
        ClusterEnv([Huge] * 4, cluster="local:2")
    except clusterenv.ConfigError as error:
        say("GiB" in str(error))
    """
    with head(text, tmp_path) as script:
        script.hear("True")
        script.everybody_is_gone()
