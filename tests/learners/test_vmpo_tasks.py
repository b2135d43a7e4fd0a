"""V-MPO on several tasks: a value and a scale for each, one policy that is not told, returns by task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners.common import unrolls
from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.learners.common.settings import from_table, to_table
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.vmpo import VMPO, VMPOConfig
from clusterenv.learners.vmpo.update import VMPOUpdater
from clusterenv.metrics import keys
from tests.learners import envs as _registered  # noqa: F401
from tests.learners.batches import SPACES, N, T, made_up

if TYPE_CHECKING:
    import pathlib

TASKS = ("test/Lever-discrete-v0", "test/Lever-discrete-v0 kind=discrete")
NAMES = ("test-Lever-discrete-v0", "test-Lever-discrete-v0-kind=discrete")


def updater(**changes: Any) -> VMPOUpdater:
    settings: dict[str, Any] = {"tasks": TASKS, "num_envs": N, "rollout_steps": T, "gamma": 0.0, "hidden": (8,)}
    return VMPOUpdater(VMPOConfig(**{**settings, **changes}), *SPACES)


@pytest.mark.parametrize("lstm", [0, 4])
@pytest.mark.parametrize("popart", [True, False])
def test_every_slot_is_valued_as_its_task_at_truncations_too(popart: bool, lstm: int) -> None:
    """A batch of slots 1 and 0, in this order, as a stream may bring them."""
    cut = np.zeros((T, N), bool)
    cut[1] = cut[2, 0] = True
    at = np.array([1, 1, 2]), np.array([0, 1, 0])
    subject = updater(gamma=0.5, popart=popart, lstm=lstm)
    state = (np.zeros((N, lstm), np.float32),) * 2 if lstm else ()
    data = made_up(
        slot=np.array([1, 0]), truncated=cut, final_obs=np.ones((3, 3), np.float32), final_at=at, state=state
    )
    critic: Any = subject.network.get_submodule("critic")
    last = critic if lstm else critic[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.tensor([10.0, 20.0]))
    aim = subject.aim(data)
    assert aim.task is not None
    assert aim.task.tolist() == [1, 0]
    own = torch.tensor([20.0, 10.0])
    said = unrolls.read(subject.network, made_up(slot=np.array([1, 0]), state=state), aim.task)
    torch.testing.assert_close(said.value[0], own, rtol=1e-4, atol=1e-4)
    for t in (1, T - 1):  # a truncation, and the end of the fragment
        torch.testing.assert_close(aim.returns[t], data.reward[t] + 0.5 * own, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(aim.returns[2, 0], data.reward[2, 0] + 0.5 * own[0], rtol=1e-4, atol=1e-4)


def test_each_task_has_statistics_and_a_scale_of_its_own() -> None:
    subject = updater(popart_rate=1.0)
    reward = np.array([[3.0, 700.0], [5.0, 300.0], [3.0, 700.0], [5.0, 300.0]])
    aim = subject.aim(made_up(reward=reward))
    assert subject.head is not None
    assert subject.head.mean.tolist() == pytest.approx([4.0, 500.0])
    assert subject.head.std.tolist() == pytest.approx([1.0, 200.0])
    assert aim.scale.tolist() == pytest.approx([1.0, 200.0])
    # The critic said 0 before: the advantages are the returns, each on the scale of its task.
    torch.testing.assert_close(aim.advantage, torch.tensor(reward, dtype=torch.float32) / aim.scale)


def test_with_popart_a_task_of_small_rewards_teaches_as_much_as_one_of_large() -> None:
    source = np.random.default_rng(1)
    reward = source.normal(size=(T, 1)) * np.array([[0.1, 1000.0]])
    weights = {}
    for popart in (True, False):
        subject = updater(popart=popart, popart_rate=1.0)
        told = subject.update(made_up(reward=reward), 1.0, lambda: None)
        weights[popart] = [told[f"{keys.TASK_WEIGHT_PREFIX}{name}"] for name in NAMES]
        assert sum(weights[popart]) == pytest.approx(1.0)
    assert weights[True] == pytest.approx([0.5, 0.5], abs=0.01)
    assert weights[False][1] > 0.99


def test_at_the_start_the_values_are_nothing_so_that_they_suit_rewards_of_any_size() -> None:
    subject = updater()
    assert subject.network(torch.ones(3, 3))[1].tolist() == [[0.0, 0.0]] * 3


def test_workers_get_the_policy_without_the_values() -> None:
    subject = updater(target_period=1)
    acting, network = subject.acting, subject.network
    assert {name for name in network.state_dict() if not name.startswith("critic")} == set(acting.state_dict())
    params, value, state = acting(torch.ones(2, 3))
    assert value is None
    assert state == ()
    assert torch.equal(params, network(torch.ones(2, 3))[0])
    subject.update(made_up(), 1.0, lambda: None)
    after = acting(torch.ones(2, 3))[0]
    assert not torch.equal(after, params)  # what is renewed is what acts
    assert torch.equal(after, network(torch.ones(2, 3))[0])


def test_what_is_saved_is_all_there_is() -> None:
    one, other = (updater(seed=seed) for seed in (1, 5))
    one.update(made_up(), 1.0, lambda: None)
    other.restore(one.tensors())
    assert one.head is not None
    assert other.head is not None
    assert torch.equal(one.head.mean, other.head.mean)
    for subject in (one, other):
        subject.update(made_up(), 1.0, lambda: None)
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("A-v0",)}, "tasks=('A-v0',) is one task. Name it with env_id"),
        (
            {"tasks": ("A-v0", "B-v0"), "env_id": "C-v0"},
            "env_id='C-v0' and tasks=('A-v0', 'B-v0') cannot both be given",
        ),
        ({"tasks": ("A-v0", "B-v0"), "num_envs": 1}, "num_envs=1 is less than the 2 tasks"),
        ({"tasks": ("A-v0", "B-v0"), "target_return": 5.0}, "target_return=5.0 with tasks"),
        ({"tasks": ("A-v0", "A-v0")}, "tasks has 'A-v0' twice"),
        ({"tasks": ("A-v0", "x=1")}, "does not begin with an environment id"),
        ({"show_task": True}, "show_task means nothing without tasks"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as told:
        VMPOConfig(**changes)
    assert message in str(told.value)


def test_settings_survive_a_file() -> None:
    config = VMPOConfig(tasks=("A-v0 x=1", "B-v0"), show_task=True, env_args=("y=2",))
    assert from_table(VMPOConfig, to_table(config)) == config
    assert [task.kwargs for task in config.all_tasks()] == [{"y": 2, "x": 1}, {"y": 2}]
    assert config.title == "A-v0+B-v0"


# Whole runs.

RECALLS = ("clusterenv/Recall-v0 delay=0", "clusterenv/Recall-v0 delay=2", "clusterenv/Recall-v0 delay=5")


def config(**changes: Any) -> VMPOConfig:
    settings: dict[str, Any] = {
        "tasks": RECALLS,
        "cluster": "inproc:2",
        "num_envs": 6,
        "rollout_steps": 16,
        "total_steps": 3 * 96,
        "hidden": (8,),
        "runtime": "torch",
        "sync": SyncConfig(rule="on-change"),
    }
    return VMPOConfig(**{**settings, **changes})


def test_returns_are_told_by_task_under_known_names() -> None:
    learner = VMPO(config())
    for update in learner.updates():
        told = [name for name in update.metrics if name.startswith(keys.TASK_RETURN_PREFIX)]
        for name in update.metrics:
            keys.find(name)
    assert told == [f"charts/episodic_return/clusterenv-Recall-v0-delay={delay}" for delay in (0, 2, 5)]
    summary = learner.summary()
    assert summary.env_id == "clusterenv/Recall-v0"
    assert list(summary.task_returns.values()) == [update.metrics[name] for name in told]


@pytest.mark.parametrize(
    ("cluster", "changes"),
    [
        ("local:2", {"mode": "stream", "runtime": "onnx"}),
        ("tcp:nodes=1,workers=2", {"runtime": "onnx", "show_task": True, "lstm": 4, "last_inputs": True}),
    ],
)
def test_it_runs_on_other_processes_and_hosts(cluster: str, changes: dict[str, Any]) -> None:
    summary = VMPO(config(cluster=cluster, **changes)).train()
    assert summary.steps == 288
    assert not any(np.isnan(list(summary.task_returns.values())))


def test_the_policy_sees_the_task_only_if_it_is_asked_for() -> None:
    plain, shown = VMPO(config(total_steps=96)), VMPO(config(total_steps=96, show_task=True))
    for learner in (plain, shown):
        learner.train()
    assert shown.network.encoder.size == plain.network.encoder.size + 3


def test_the_same_seed_is_the_same_run() -> None:
    one, other = VMPO(config()), VMPO(config(cluster="inproc:3"))
    for learner in (one, other):
        learner.train()
    for mine, theirs in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_run_goes_on_where_it_was_saved(tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first = VMPO(config(), checkpoints=checkpoints)
    told = first.train().task_returns
    saved = checkpoints.load()
    assert saved is not None
    second = VMPO(config(total_steps=4 * 96), checkpoints=checkpoints, resume=saved)
    assert second.train().steps == 4 * 96
    kept = second._tracker.by_task
    before = first._tracker.by_task
    assert [list(now)[: len(then)] for now, then in zip(kept, before, strict=True)] == [list(then) for then in before]
    assert set(told) == set(second.summary().task_returns)
