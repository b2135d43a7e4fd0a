"""What a learner sees of the rewards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from clusterenv.errors import ConfigError
from clusterenv.learners.common.rewards import transform
from tests.learners.kit import tensor, vectors

NAMES = {
    "none": "raw",
    "clip": "abs_one",
    "sign": "sign",
    "soft asymmetric": "soft_asymmetric_code",
    "optimistic asymmetric": "optimistic_asymmetric_paper_formula",
}


@pytest.mark.parametrize("kind", NAMES)
def test_agrees_with_numbers_worked_out_beforehand(kind: Any) -> None:
    told = vectors("reward_transforms")
    got = transform(tensor(told["raw"]), kind)
    torch.testing.assert_close(got, tensor(told[NAMES[kind]]), rtol=1e-12, atol=1e-12)


def test_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'clap'.*'clip'"):
        transform(torch.zeros(1), "clap")  # type: ignore[arg-type]
