"""PPO as a whole: it learns, it repeats itself, it stops well and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.ppo import PPO, PPOConfig
from clusterenv.learners.ppo.update import PPOUpdater
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from clusterenv.testing import workers_of
from tests.learners.envs import KINDS
from tests.learners.runs import Notebook
from tests.zoo import wait_until

if TYPE_CHECKING:
    import pathlib

    from clusterenv.learners.common.checkpoint import Checkpoint


def config(**changes: Any) -> PPOConfig:
    """A run of a second: torch acts, because exporting a graph takes longer than all of it."""
    settings: dict[str, Any] = {
        "env_id": "test/Lever-discrete-v0",
        "cluster": "inproc:2",
        "num_envs": 8,
        "rollout_steps": 16,
        "total_steps": 3 * 8 * 16,
        "minibatches": 2,
        "epochs": 2,
        "gamma": 0.5,
        "hidden": (16,),
        "learning_rate": 0.01,
        "runtime": "torch",
        "sync": SyncConfig(rule="on-change"),
    }
    return PPOConfig(**{**settings, **changes})


def run(settings: PPOConfig, **kwargs: Any) -> tuple[PPO, Notebook]:
    notebook = Notebook()
    learner = PPO(settings, recorder=Recorder([notebook]), **kwargs)
    learner.train()
    return learner, notebook


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_with_every_kind_of_action(kind: str) -> None:
    learner, _ = run(config(env_id=f"test/Lever-{kind}-v0", total_steps=16 * 128, epochs=4, learning_rate=0.03))
    assert learner.summary().final_return > 3.5  # of 4; chance is 2


def test_it_learns_from_a_stream_that_it_publishes_to_after_each_gradient_step() -> None:
    settings = config(
        mode="stream",
        publish_every="gradient step",
        total_steps=30 * 64,
        epochs=4,
        learning_rate=0.03,
        cluster="local:1",
    )
    learner, notebook = run(settings)
    told = learner.summary()
    assert told.final_return > 3.5
    assert told.publishes == len(notebook.rows) * 4 * 2
    assert told.steps == len(notebook.rows) * 64


def test_normalised_observations_are_learned_and_published() -> None:
    learner, _ = run(config(normalize_observations=True, total_steps=16 * 128, epochs=4, learning_rate=0.03))
    assert learner.summary().final_return > 3.5
    normalizer = learner.network.normalizer
    assert normalizer is not None
    assert normalizer.count.item() == 16 * 128
    torch.testing.assert_close(normalizer.mean, torch.full((2,), 0.5, dtype=torch.float64), atol=0.05, rtol=0)


def losses(notebook: Notebook) -> list[dict[str, float]]:
    """What does not depend on the clock."""
    timed = ("cluster/", "charts/SPS", "sync/publish_to_apply_ms")
    return [{name: value for name, value in row.items() if not name.startswith(timed)} for row in notebook.rows]


@pytest.mark.parametrize("sync", [SyncConfig(rule="on-change"), SyncConfig(threshold=1e-4)])
def test_the_same_seed_is_the_same_run(sync: SyncConfig) -> None:
    first, told = run(config(sync=sync))
    torch.manual_seed(1234)  # what others do with torch's own random numbers changes nothing
    second, told_again = run(config(sync=sync))
    other, _ = run(config(sync=sync, seed=2))
    assert losses(told) == losses(told_again)
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(next(first.network.parameters()), next(other.network.parameters()))


def test_every_update_is_told_under_known_names() -> None:
    learner, notebook = run(config())
    assert [row.pop("global_step") for row in notebook.rows] == [128, 256, 384]
    for name in notebook.rows[-1]:
        keys.find(name)
    for metric in (keys.EPISODIC_RETURN, keys.SPS, keys.POLICY_LOSS, keys.POLICY_LAG_MAX, keys.SYNC_BYTES):
        assert metric.name in notebook.rows[-1]
    told = learner.summary()
    assert (told.steps, told.episodes, told.publishes, told.syncs) == (384, 96, 3, 4)
    assert told.always_bytes > 0
    assert told.lag_max == 0


def test_the_divergence_beside_a_sync_is_the_one_that_caused_it() -> None:
    learner, notebook = run(config(sync=SyncConfig(threshold=1e-4)))
    moved = [row for row in notebook.rows if row.get("sync/reason/divergence")]
    assert moved
    assert all(row["sync/divergence_max"] > 1e-4 for row in moved)
    assert learner.summary().divergence_max == max(row["sync/divergence_max"] for row in notebook.rows)


@pytest.mark.parametrize("cluster", ["inproc:16", "local:2", "tcp:nodes=2,workers=2"])
def test_workers_are_those_of_all_hosts_that_have_environments(cluster: str) -> None:
    _, notebook = run(config(env_id="CartPole-v1", cluster=cluster, total_steps=128, runtime="onnx"))
    expected = {"inproc:16": 8, "local:2": 2, "tcp:nodes=2,workers=2": 4}[cluster]
    assert {row["cluster/workers"] for row in notebook.rows} == {expected}
    assert {row["cluster/workers_ready"] for row in notebook.rows} == {expected}


def test_updates_can_be_taken_one_at_a_time_and_left() -> None:
    steps = []
    for update in PPO(config(total_steps=100 * 128)).updates():
        steps.append(update.global_step)
        if len(steps) == 2:
            break
    assert steps == [128, 256]


def test_a_target_ends_the_run_early() -> None:
    learner, _ = run(config(total_steps=10_000, target_return=-1.0))
    # As soon as a hundred episodes have ended: 32 end in each update.
    assert learner.summary().steps == 4 * 128


def test_learning_rate_and_entropy_bonus_fall_with_the_budget() -> None:
    _, notebook = run(config())
    assert [row["charts/learning_rate"] for row in notebook.rows] == pytest.approx([0.01, 0.02 / 3, 0.01 / 3])
    _, notebook = run(config(anneal=False))
    assert [row["charts/learning_rate"] for row in notebook.rows] == [0.01] * 3


def test_a_target_for_the_drift_ends_the_passes() -> None:
    _, free = run(config(epochs=20, learning_rate=0.05))
    _, held = run(config(epochs=20, learning_rate=0.05, target_kl=1e-3))
    assert held.rows[0]["losses/approx_kl"] < free.rows[0]["losses/approx_kl"]


def test_there_is_no_network_before_the_environments_told_its_shape() -> None:
    with pytest.raises(AttributeError, match="before train"):
        PPO(config()).network  # noqa: B018


def test_an_interrupt_saves_and_closes_and_rises(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    learner = PPO(config(), recorder=Recorder([Notebook(break_after=2)]), checkpoints=checkpoints)
    with pytest.raises(KeyboardInterrupt):
        learner.train()
    assert learner.summary().interrupted
    saved = checkpoints.load()
    assert saved is not None
    assert saved.facts["global_step"] == 256


@pytest.mark.fault("F56", "F60")
@pytest.mark.parametrize("kind", [ValueError, torch.cuda.OutOfMemoryError])
def test_a_learner_that_fails_releases_its_workers_and_keeps_what_was_saved(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    checkpoints = Checkpoints(tmp_path)
    learner = PPO(config(cluster="local:2", checkpoint_every_s=1e-6), recorder=Recorder(), checkpoints=checkpoints)
    fails, others = iter([False, False, True]), set(workers_of())  # of batches that other tests share
    usual = PPOUpdater.update

    def update(*args: Any, **kwargs: Any) -> Any:
        if next(fails):
            assert len(set(workers_of()) - others) == 2
            raise kind("the device is lost")
        return usual(*args, **kwargs)

    monkeypatch.setattr(PPOUpdater, "update", update)
    with pytest.raises(kind, match="the device is lost"):
        learner.train()
    wait_until(lambda: set(workers_of()) <= others, 30.0)
    saved = checkpoints.load()
    assert saved is not None
    assert saved.facts["global_step"] == 256


def test_a_run_goes_on_where_it_was_saved(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first, _ = run(config(), checkpoints=checkpoints)
    saved = checkpoints.load()
    assert saved is not None
    assert saved.facts["episodes"] == 96
    second, notebook = run(config(total_steps=5 * 128), checkpoints=checkpoints, resume=saved)
    assert [row["global_step"] for row in notebook.rows] == [512, 640]
    assert notebook.rows[0]["charts/learning_rate"] == pytest.approx(0.01 * 2 / 5)
    assert second.summary().steps == 640
    assert [first.summary().resumed_at, second.summary().resumed_at] == [0, 384]
    assert [first.summary().publishes, second.summary().publishes] == [3, 2], "counted from there"
    assert second.summary().seconds > first.summary().seconds
    assert notebook.rows[0]["charts/SPS"] < 1e6  # the steps before are not counted again
    newest = checkpoints.load()
    assert newest is not None
    assert newest.tensors["optimizer/0/step"] == 5 * 2 * 2
    assert [saved.facts["epoch"], newest.facts["epoch"]] == [0, 1], "versions of the first never look newer"


def saved_after(seconds: float, folder: pathlib.Path) -> Checkpoint:
    """A checkpoint of a run that took this long."""
    checkpoints = Checkpoints(folder)
    run(config(), checkpoints=checkpoints)
    saved = checkpoints.load()
    assert saved is not None
    return saved._replace(facts={**saved.facts, "seconds": seconds})


def test_the_seconds_before_are_not_those_of_the_first_row(tmp_path: pathlib.Path) -> None:
    _, notebook = run(config(total_steps=5 * 128), resume=saved_after(10_000.0, tmp_path))
    assert notebook.rows[0]["charts/SPS"] > 1  # with the earlier seconds it would be less than 0.1


class Spy(Checkpoints):
    """Remembers at which steps it saved."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.steps: list[int] = []

    def save(self, global_step: int, *args: Any) -> pathlib.Path:
        self.steps.append(global_step)
        return super().save(global_step, *args)


def test_checkpoints_come_now_and_then(tmp_path: pathlib.Path) -> None:
    often, seldom = Spy(tmp_path), Spy(tmp_path)
    run(config(checkpoint_every_s=1e-6), checkpoints=often)
    assert often.steps == [128, 256, 384]
    run(config(), checkpoints=seldom)
    assert seldom.steps == [384]


def test_a_resumed_run_does_not_save_at_once(tmp_path: pathlib.Path) -> None:
    checkpoints = Spy(tmp_path / "second")
    run(config(total_steps=5 * 128), checkpoints=checkpoints, resume=saved_after(10_000.0, tmp_path / "first"))
    assert checkpoints.steps == [640]


def test_a_resumed_run_whose_budget_is_spent_plays_nothing(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first, _ = run(config(), checkpoints=checkpoints)
    second, notebook = run(config(), resume=checkpoints.load())
    assert second.summary().steps == first.summary().steps == 384
    assert notebook.rows == []
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_resumed_run_that_is_stopped_at_once_keeps_its_seconds(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, checkpoints = saved_after(10_000.0, tmp_path / "first"), Spy(tmp_path / "second")

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PPOUpdater, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(config(total_steps=5 * 128), checkpoints=checkpoints, resume=saved)
    newest = checkpoints.load()
    assert newest is not None
    assert newest.facts["seconds"] == 10_000.0
