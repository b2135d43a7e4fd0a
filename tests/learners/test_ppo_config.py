"""The settings of PPO and of synchronisation: what does not fit together is refused, with the reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import clusterenv
from clusterenv.errors import ConfigError
from clusterenv.learners import catalog
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.ppo import PPOConfig
from clusterenv.sync.aps import APS
from clusterenv.sync.rules import Always, Every, Never, OnChange


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({}, APS()),
        ({"threshold": 0.01, "max_lag": 7}, APS(0.01, max_lag=7)),
        ({"target_ess": 0.9}, APS(target_ess=0.9)),
        ({"bandwidth": "2MB/s"}, APS(bandwidth="2MB/s")),
        ({"rule": "always"}, Always()),
        ({"rule": "every", "every": 4}, Every(4)),
        ({"rule": "on-change"}, OnChange()),
        ({"rule": "never"}, Never()),
    ],
)
def test_settings_become_rules(settings: dict[str, Any], rule: object) -> None:
    assert SyncConfig(**settings).make() == rule


def test_a_run_that_is_to_be_repeated_looks_at_no_clock() -> None:
    rule = SyncConfig(threshold=0.01).make(by_clock=False)
    assert rule == APS(0.01, max_age_s=None)


def test_a_learner_has_a_threshold_of_its_own_unless_another_is_named() -> None:
    assert SyncConfig().make(threshold=0.003) == APS(0.003)
    assert SyncConfig(threshold=0.1).make(threshold=0.003) == APS(0.1)
    assert SyncConfig(target_ess=0.9).make(threshold=0.003) == APS(target_ess=0.9)
    assert SyncConfig(rule="never").make(threshold=0.003) == Never()


def test_a_learner_that_old_data_does_not_hold_back_has_no_use_for_the_stall_rule() -> None:
    assert SyncConfig(threshold=0.1).make(stall_after=None) == APS(0.1, stall_after=None)
    assert SyncConfig(rule="on-change").make(stall_after=None) == OnChange()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "every"}, r"needs sync\.every"),
        ({"every": 4}, r"sync\.every=4 means nothing to sync\.rule='aps'"),
        ({"rule": "always", "threshold": 0.1}, r"sync\.threshold=0\.1 means nothing to sync\.rule='always'"),
        ({"threshold": 0.1, "target_ess": 0.9}, "each of them decides the threshold"),
        ({"threshold": -1.0}, "must not be negative"),
        ({"target_ess": 2.0}, "must lie between 0 and 1"),
        ({"bandwidth": "fast"}, "bandwidth='fast'"),
        ({"max_lag": 0}, "max_lag=0 must be at least 1"),
        ({"rule": "every", "every": 0}, "must be at least 1"),
    ],
)
def test_synchronisation_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SyncConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 0}, "num_envs=0 must be at least 1"),
        ({"cluster": "locl:2"}, "Did you mean 'local'"),
        ({"gamma": 1.5}, r"gamma=1\.5 must be at most 1"),
        ({"target_return": float("nan")}, r"target_return=nan must be finite"),
        ({"gae_lambda": -0.1}, r"gae_lambda=-0\.1 must be at least 0"),
        ({"learning_rate": 0.0}, r"learning_rate=0\.0 must be more than 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"learning_rate": float("inf")}, "must be finite"),
        ({"epochs": 0}, "epochs=0 must be at least 1"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"target_kl": 0.0}, "target_kl"),
        ({"torch_threads": 0}, "torch_threads=0 must be at least 1"),
        ({"torch_threads": 100_000}, r"torch_threads=100000 must be at most 1024"),
        ({"hidden": (64, 0)}, "sizes of at least 1"),
        ({"stream_slots": 4}, "means nothing in lock step"),
        ({"mode": "stream", "stream_slots": 33}, "must be from 1 to num_envs=32"),
        ({"inference": "head"}, "Use mode='stream', or inference='worker'"),
        ({"mode": "stream", "inference": "head", "sync": SyncConfig(rule="always")}, "no weights move then"),
        ({"mode": "stream", "inference": "head", "measure_drift": True}, "measure_drift=True: no weights move"),
        ({"inference_batch": 4}, "means nothing with inference='worker'"),
        ({"mode": "stream", "inference": "head", "inference_batch": 0}, "must be from 1 to num_envs=32"),
        ({"mode": "stream", "inference": "head", "inference_batch": 33}, "must be from 1 to num_envs=32"),
        ({"inference_wait_ms": -1.0}, r"inference_wait_ms=-1\.0 must be at least 0"),
        ({"publish_every": "gradient step"}, "the savings would look too good"),
        ({"num_envs": 1, "rollout_steps": 4}, "some would be empty"),
        ({"num_envs": 1, "rollout_steps": 15}, "minibatches=8 for the 15 transitions .* alone in its minibatch"),
        ({"on_loss": "shrink"}, "on_loss='shrink' with mode='lock step' .* Leave on_loss out, or use mode='stream'"),
        ({"on_loss": "shrink", "mode": "stream", "inference": "head"}, "on_loss='shrink' with .* inference='head'"),
        ({"min_nodes": 0}, "min_nodes=0 must be at least 1"),
        ({"min_nodes": 2, "cluster": "tcp:nodes=2"}, "min_nodes=2 with mode='lock step'"),
        ({"min_nodes": 2, "mode": "stream"}, "min_nodes=2 must be at most 1, the number of nodes of cluster='local:2'"),
        ({"timeouts": {"step_s": -1.0}}, r"timeouts\.step_s=-1\.0 must be seconds"),
        ({"total_steps": 100}, r"less than one batch of 2048 transitions \(rollout_steps=64 x 32 slots\)"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPOConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "lock-step"}, r"mode='lock-step' must be 'lock step' or 'stream'\. Did you mean 'lock step'\?"),
        ({"mode": np.array(["lock step", "stream"])}, "mode=array.* must be 'lock step' or 'stream'"),
        ({"publish_every": "gradient_step"}, r"publish_every='gradient_step' .* mean 'gradient step'\?"),
        ({"runtime": None}, "runtime=None must be 'auto' or 'onnx' or 'torch'"),
        ({"seed": 2**63}, r"seed=9223372036854775808 must be more than -2\*\*63 and less than 2\*\*63"),
        ({"epochs": 2.5}, r"epochs=2\.5 must be int"),
        ({"epochs": np.float64(2)}, "epochs=.* must be int"),
        ({"minibatches": True}, "minibatches=True must be int"),
        ({"total_steps": "9999"}, "total_steps='9999' must be int"),
        ({"stream_slots": 4.0, "mode": "stream"}, r"stream_slots=4\.0 must be int"),
        ({"hidden": (64, 2.5)}, r"hidden=\(64, 2\.5\) must be a list of int"),
        ({"learning_rate": "fast"}, "learning_rate='fast' must be float"),
        ({"anneal": "no"}, "anneal='no' must be bool"),
        ({"sync": "always"}, "sync='always' must be SyncConfig"),
        ({"on_loss": "shrnk"}, "on_loss='shrnk' must be .* Did you mean 'shrink'"),
        ({"timeouts": 5}, "timeouts=5 must be Timeouts"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_before_anything_starts(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPOConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "on_change"}, r"sync\.rule='on_change' must be .* Did you mean 'on-change'\?"),
        ({"max_lag": 2.5}, r"sync\.max_lag=2\.5 must be int"),
        ({"rule": "every", "every": "4"}, r"sync\.every='4' must be int"),
    ],
)
def test_so_is_one_of_synchronisation(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SyncConfig(**settings)


@pytest.mark.parametrize("name", catalog.LEARNERS)
def test_every_learner_looks_at_every_setting(name: str) -> None:
    kind: Any = catalog.find(name).config
    for field in dataclasses.fields(kind):
        with pytest.raises(ConfigError, match=f"{field.name}="):
            kind(**{field.name: object()})


def test_numbers_of_numpy_are_numbers() -> None:
    settings: dict[str, Any] = {
        "epochs": np.int64(3),
        "seed": np.uint8(7),
        "gamma": np.float32(0.5),
        "learning_rate": np.int32(1),
        "anneal": np.bool_(False),
        "hidden": [np.int16(8), 8],
    }
    config = PPOConfig(**settings)
    assert config == PPOConfig(epochs=3, seed=7, gamma=0.5, learning_rate=1.0, anneal=False, hidden=(8, 8))
    kept = [getattr(config, name) for name in settings if name != "hidden"]
    assert [type(value) for value in kept] == [int, int, float, float, bool], "a file can hold these"
    assert [type(size) for size in config.hidden or ()] == [int, int]


def test_a_batch_of_a_stream_has_some_of_the_slots() -> None:
    assert PPOConfig(num_envs=32).batch_slots == 32
    assert PPOConfig(num_envs=32, mode="stream").batch_slots == 16
    assert PPOConfig(num_envs=1, mode="stream").batch_slots == 1
    assert PPOConfig(num_envs=32, mode="stream", stream_slots=5, rollout_steps=10).batch_size == 50


def test_the_settings_need_no_torch() -> None:
    import subprocess
    import sys

    program = "import sys; from clusterenv.learners.ppo import PPOConfig; PPOConfig(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
    assert clusterenv.__version__
