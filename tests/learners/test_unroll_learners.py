"""What IMPALA and IMPACT have in common: they learn, repeat themselves, go on where they were saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

from clusterenv.errors import ConfigError
from clusterenv.learners import catalog
from clusterenv.learners.common.checkpoint import Checkpoints
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.metrics import keys
from clusterenv.metrics.recorder import Recorder
from tests.learners.batches import SPACES, N, T, made_up
from tests.learners.envs import KINDS
from tests.learners.runs import LEVER, Notebook

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable

    Make = Callable[..., Any]

OWN: dict[str, dict[str, Any]] = {"impala": {"optimizer": "adam"}, "impact": {"uses": 1, "target_every": 4}}


@pytest.fixture(params=OWN)
def make(request: pytest.FixtureRequest) -> Make:
    """Makes one of the two with these settings, and anything else that a learner takes."""
    entry = catalog.find(request.param)

    def make(changes: dict[str, Any], **kwargs: Any) -> Any:
        settings: Any = {**LEVER, **OWN[request.param], **changes}
        return entry.learner()(entry.config(**settings), **kwargs)

    return make


def run(make: Make, changes: dict[str, Any], **kwargs: Any) -> tuple[Any, Notebook]:
    notebook = Notebook()
    learner = make(changes, recorder=Recorder([notebook]), **kwargs)
    learner.train()
    return learner, notebook


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_with_every_kind_of_action(make: Make, kind: str) -> None:
    learner, _ = run(make, {"env_id": f"test/Lever-{kind}-v0"})
    assert learner.summary().final_return > 3.4  # of 4; chance is 2


def test_it_learns_from_a_stream(make: Make) -> None:
    settings = {"mode": "stream", "stream_slots": 4, "cluster": "local:1", "total_steps": 160 * 32}
    learner, notebook = run(make, settings)
    told = learner.summary()
    assert told.final_return > 3.4
    assert told.publishes == 160
    assert len(notebook.rows) == 16


HEAD = {"mode": "stream", "stream_slots": 4, "cluster": "local:1", "inference": "head", "sync": SyncConfig()}


@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_it_learns_with_inference_on_the_head(make: Make, kind: str) -> None:
    learner, notebook = run(make, {**HEAD, "env_id": f"test/Lever-{kind}-v0", "total_steps": 160 * 32})
    told = learner.summary()
    assert told.final_return > 3.4
    assert (told.publishes, told.syncs, told.bytes) == (160, 0, 0)
    written = notebook.rows[-1]
    assert 1 <= written[keys.INFERENCE_BATCH.name] <= 4
    assert 0 <= written[keys.INFERENCE_FULL.name] <= 1
    assert 0 < written[keys.INFERENCE_P50.name] <= written[keys.INFERENCE_P99.name]
    assert keys.WORKER_WAIT.name not in written
    for name in written.keys() - {"global_step"}:
        keys.find(name)


def test_a_run_with_inference_on_the_head_goes_on_after_an_interrupt(make: Make, tmp_path: pathlib.Path) -> None:
    """And nothing is left behind by the first part, neither a thread nor a worker."""
    checkpoints = Checkpoints(tmp_path)
    learner = make({**HEAD, "record_every": 2}, recorder=Recorder([Notebook(break_after=3)]), checkpoints=checkpoints)
    with pytest.raises(KeyboardInterrupt):
        learner.train()
    saved = checkpoints.load()
    assert saved is not None
    second = make({**HEAD, "total_steps": saved.facts["global_step"] + 64}, resume=saved)
    second.train()
    assert second.summary().steps == saved.facts["global_step"] + 64
    assert second.stats["version"][0] == 1  # another epoch


@pytest.mark.parametrize("lstm", [0, 16])
def test_equal_weights_have_no_ratio(make: Make, lstm: int) -> None:
    """In lock step, with every version fetched, the learner holds what the workers hold, memory included."""
    _, notebook = run(make, {"total_steps": 10 * 64, "encoding": "fp32", "lstm": lstm})
    assert notebook.rows[-1][keys.LOG_RATIO.name] < 1e-4
    assert notebook.rows[-1][keys.RHO_CLIPPED.name] == 0


def test_versions_may_be_rarer_than_updates(make: Make) -> None:
    learner, _ = run(make, {"publish_every": 4})
    assert learner.summary().publishes == 20


def test_the_same_seed_is_the_same_run(make: Make) -> None:
    first, second, other = (run(make, {"total_steps": 640, "seed": seed})[0] for seed in (1, 1, 2))
    for one, two in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(next(first.network.parameters()), next(other.network.parameters()))


def test_every_metric_has_a_name(make: Make) -> None:
    _, notebook = run(make, {"total_steps": 640})
    for name in notebook.rows[-1].keys() - {"global_step"}:
        keys.find(name)


def test_a_run_goes_on_where_it_was_saved(make: Make, tmp_path: pathlib.Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    first, _ = run(make, {"total_steps": 640, "anneal": False}, checkpoints=checkpoints)
    second = make({"total_steps": 1280, "anneal": False}, resume=checkpoints.load())
    update = next(iter(second.updates()))
    assert update.global_step == 1280
    moved = [(a - b).abs().max() for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True)]
    assert 0 < max(moved) < 0.5


@pytest.mark.parametrize("setting", [{"rho_bar": 1.5}, {"c_bar": 0.5}, {"vtrace_lambda": 0.5}, {"gamma": 0.9}], ids=str)
def test_the_settings_of_v_trace_reach_it(make: Make, setting: dict[str, Any]) -> None:
    def learned(changes: dict[str, Any]) -> Any:
        # Twice as probable to the learner as to who acted, so that the bars have something to cut.
        batch = made_up(logp=np.full((T, N), np.log(0.25), np.float32))
        subject = make(changes).make_updater(*SPACES)
        subject.update(batch, 1.0, lambda: None)
        return parameters_to_vector(subject.network.parameters())

    assert not torch.equal(learned({}), learned(setting))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rho_bar": 0.5}, r"rho_bar=0\.5 is less than c_bar=1\.0"),
        ({"c_bar": 0.0}, r"c_bar=0\.0 must be more than 0"),
        ({"vtrace_lambda": 1.5}, r"vtrace_lambda=1\.5 must be at most 1"),
        ({"publish_every": 0}, "publish_every=0 must be at least 1"),
    ],
)
def test_settings_of_v_trace_that_do_not_fit_are_refused(make: Make, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(settings)
