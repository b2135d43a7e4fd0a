"""On-policy maximum a posteriori policy optimisation (V-MPO), in lock step or on a stream.

from clusterenv.learners.vmpo import VMPO, VMPOConfig

summary = VMPO(VMPOConfig(env_id="CartPole-v1", cluster="local:2")).train()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.learners.common.presets import preset as _preset
from clusterenv.learners.vmpo.config import VMPOConfig

if TYPE_CHECKING:
    from clusterenv.learners.common.config import Mode
    from clusterenv.learners.vmpo.learner import VMPO

__all__ = ["VMPO", "VMPOConfig", "preset"]


def preset(env_id: str, mode: Mode = "lock step") -> VMPOConfig:
    """The settings for an environment; the defaults if there are none of its own."""
    return _preset("vmpo", VMPOConfig, env_id, mode)


def __getattr__(name: str) -> object:
    # The settings are needed for `--help`; torch, which takes seconds, is not.
    if name == "VMPO":
        from clusterenv.learners.vmpo.learner import VMPO

        return VMPO
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
