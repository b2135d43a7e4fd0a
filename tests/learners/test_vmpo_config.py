"""The settings of V-MPO."""

from __future__ import annotations

import pytest

from clusterenv.errors import ConfigError
from clusterenv.learners.common.settings import from_table, to_table
from clusterenv.learners.vmpo import VMPOConfig, preset


def test_settings_survive_a_file() -> None:
    config = VMPOConfig(top_share=0.25, popart=False, hidden=(8,), reward="clip")
    assert from_table(VMPOConfig, to_table(config)) == config


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("target_period", 0, "at least 1"),
        ("passes", 0, "at least 1"),
        ("top_share", 0.0, "more than 0"),
        ("top_share", 1.5, "at most 1"),
        ("epsilon_temperature", 0.0, "more than 0"),
        ("epsilon_kl", -1.0, "more than 0"),
        ("epsilon_spread", 0.0, "more than 0"),
        ("temperature", 0.0, "more than 0"),
        ("kl_multiplier", 0.0, "more than 0"),
        ("multiplier_rate", float("nan"), "more than 0"),
        ("popart_rate", 2.0, "at most 1"),
        ("gamma", 2.0, "at most 1"),
    ],
)
def test_what_cannot_be_is_refused(name: str, value: float, rule: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}={value!r} must be {rule}"):
        VMPOConfig(**{name: value})  # type: ignore[arg-type]


def test_an_environment_without_settings_of_its_own_gets_the_defaults() -> None:
    assert preset("Unheard-v0") == VMPOConfig(env_id="Unheard-v0")
