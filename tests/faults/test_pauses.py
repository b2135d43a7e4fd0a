"""Heads and nodes that stand still for longer than the others wait, and then go on as if nothing had been."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.faults.kit import LIMIT_S, ended
from tests.faults.scripts import head
from tests.faults.test_elastic import Hands, hands, joined, of_both  # noqa: F401 (a fixture)
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib

HEAD = """
envs = clusterenv.make_vec("CartPole-v1", 4, cluster="tcp:nodes=2,workers=1,silence_s=5")
envs.reset(seed=1)
envs.step([0] * 4)
meet("playing")
_, _, _, truncated, infos = envs.step([0] * 4)
say(truncated.tolist(), infos["worker_lost"].tolist())
_, _, _, truncated, infos = envs.step([0] * 4)
say(truncated.tolist(), "worker_lost" in infos)
envs.close()
"""


@pytest.mark.fault("F18")
def test_a_head_that_stands_still_loses_its_nodes_and_takes_others(tmp_path: pathlib.Path) -> None:
    """As on a laptop that was closed. The nodes cannot know, and end themselves."""
    with head(HEAD, tmp_path) as script:
        script.hear("playing")
        nodes = [each for each in script.family if "node" in each.cmdline()]
        assert len(nodes) == 2
        os.kill(script.process.pid, signal.SIGSTOP)
        wait_until(lambda: all(_gone(node) for node in nodes), LIMIT_S)
        os.kill(script.process.pid, signal.SIGCONT)
        script.answer()
        script.hear("[True, True, True, True] [True, True, True, True]")
        script.hear("[False, False, False, False] False")
        script.everybody_is_gone()
        assert script.process.returncode == 0


def _gone(process: psutil.Process) -> bool:
    """Whether it has ended; its head stands still, and buries nobody."""
    try:
        return ended(process) or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.fault("F03", "F15")
def test_a_node_that_wakes_up_after_another_took_its_place_is_refused(
    hands: Hands,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with joined(hands, caplog, "shrink") as envs, envs.stream(4, slots=4) as stream:
        next(result for result in stream if of_both(result))
        hands.nodes[0].send_signal(signal.SIGSTOP)
        next(result for _, result in zip(iter(int, 1), stream, strict=False) if "has been silent" in caplog.text)
        hands.join()
        back = next(result for result in stream if result.worker_lost.any())
        assert len(back.slot[back.worker_lost]) == 2
        hands.nodes[0].send_signal(signal.SIGCONT)
        wait_until(lambda: next(stream) is not None and hands.nodes[0].poll() is not None, LIMIT_S)
        later = [next(stream) for _ in range(20)]
        assert not any(result.worker_lost.any() for result in later), "who took its place plays on"
        assert envs.stats()["restarts"] == 1
