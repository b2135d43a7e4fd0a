"""What a run does when workers are lost, or take too long: as its settings say."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import pytest

from clusterenv import ConfigError, Timeouts, WorkerLost
from clusterenv.env.make import make_vec
from clusterenv.learners.common.source import source_for
from clusterenv.learners.impala import IMPALA, IMPALAConfig
from clusterenv.learners.vmpo import VMPO, VMPOConfig
from tests.learners.runs import LEVER

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Generator, Iterator

    from clusterenv.learners.common.loop import Update

STREAM: dict[str, Any] = {**LEVER, "mode": "stream", "stream_slots": 1, "num_envs": 2, "total_steps": 20 * 8}


@pytest.mark.parametrize("inference", ["worker", "head"])
@pytest.mark.parametrize(("on_loss", "losses"), [("restart", 4), ("raise", 1)])
def test_a_run_goes_on_after_a_loss_or_ends_with_it(
    tmp_path: pathlib.Path, inference: Any, on_loss: Any, losses: int
) -> None:
    marks = tmp_path / "marks"
    own: dict[str, Any] = {
        "env_id": "test/Mortal-v0",
        "env_args": (f'marks="{marks}"',),
        "cluster": "local:1",
        "num_envs": 1,
    }
    acts: dict[str, Any] = {"inference": "head", "sync": IMPALAConfig().sync} if inference == "head" else {}
    with pytest.raises(WorkerLost, match="again and again" if on_loss == "restart" else "worker 0"):
        IMPALA(IMPALAConfig(**{**STREAM, **own, **acts, "on_loss": on_loss})).train()
    assert marks.read_text().count("lost") == losses


@pytest.fixture
def tasks(tmp_path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Slot 0 is lost again and again, slot 1 is not; on two workers each has its own."""
    name = "test/MortalTask-v0"
    gymnasium.register(name, entry_point="tests.learners.envs:Mortal", kwargs={"marks": str(tmp_path / "marks")})
    yield (name, "test/Lever-discrete-v0")
    del gymnasium.registry[name]


def learner_of(tasks: tuple[str, str], on_loss: Any) -> VMPO:
    own: dict[str, Any] = {
        "tasks": tasks,
        "cluster": "local:2",
        "on_loss": on_loss,
        "popart": False,
        "total_steps": 10**9,
    }
    return VMPO(VMPOConfig(**{**STREAM, "env_id": VMPOConfig.env_id, "record_every": 1, **own}))


def test_a_run_that_may_shrink_goes_on_with_those_that_are_left(
    tasks: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    learner = learner_of(tasks, "shrink")
    with contextlib.closing(cast("Generator[Update]", learner.updates())) as updates:
        next(update for update in updates if "the others go on" in caplog.text)
        assert [next(updates).metrics for _ in range(20)]
        assert learner.stats["workers_ready"] == 1


def test_one_that_may_not_shrink_ends(tasks: tuple[str, str]) -> None:
    with pytest.raises(WorkerLost, match="again and again"):
        learner_of(tasks, "restart").train()


def test_limits_are_those_of_the_settings(tmp_path: pathlib.Path) -> None:
    """One environment waits in its third step for a file that never comes."""
    own: dict[str, Any] = {
        "env_id": "test/Gated-v0",
        "env_args": (f'gate="{tmp_path / "gate"}"',),
        "num_envs": 4,
        "stream_slots": 4,
    }
    limits = Timeouts(step_s=0.7)
    config = IMPALAConfig(**{**STREAM, **own, "cluster": "local:1", "on_loss": "raise", "timeouts": limits})
    with pytest.raises(WorkerLost, match=r"0\.7 s"):
        IMPALA(config).train()


def test_a_stream_waits_for_as_many_nodes_as_the_settings_ask_for() -> None:
    config = IMPALAConfig(**{**STREAM, "cluster": "tcp:nodes=2", "min_nodes": 2})
    with make_vec(config.env_id, 2, cluster="inproc") as envs:
        policy = IMPALA(config).make_updater(envs.single_observation_space, envs.single_action_space).acting
        with pytest.raises(ConfigError, match="min_nodes=2 must be a whole number from 1 to the 1 nodes"):
            source_for(envs, policy, config)
