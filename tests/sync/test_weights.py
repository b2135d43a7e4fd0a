"""The layout of weights: flat and back without loss, and refusals that name the tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from clusterenv.errors import ConfigError, WeightsError
from clusterenv.sync.weights import Flat, TensorSpec, WeightSpec
from tests.sync import kit


def actor() -> dict[str, kit.Array]:
    return {
        "hidden.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "steps": np.array(7, dtype=np.int64),
        "log_std": np.array([0.5, -0.5], dtype=np.float32),
        "mean": np.array([0.1, 0.2], dtype=np.float64),
    }


@given(kit.weights())
@settings(max_examples=60)
def test_flat_and_back_is_the_same_to_the_bit(weights: dict[str, kit.Array]) -> None:
    spec = WeightSpec.of(weights)
    spec.check(weights)
    back = spec.unflatten(spec.flatten(weights))
    assert list(back) == list(weights)
    assert all(kit.same_bits(back[name], weights[name]) for name in weights)


def test_float32_goes_to_the_vector_and_all_else_to_the_tail() -> None:
    spec = WeightSpec.of(actor())
    flat = spec.flatten(actor())
    assert (spec.floats, spec.tail_bytes) == (8, 24)
    assert flat.vector.tolist() == [0, 1, 2, 3, 4, 5, 0.5, -0.5]
    assert flat.tail == np.int64(7).tobytes() + np.array([0.1, 0.2]).tobytes()


def test_flat_memory_is_a_copy() -> None:
    weights = actor()
    flat = WeightSpec.of(weights).flatten(weights)
    weights["hidden.weight"][:] = 9
    assert flat.vector[:6].tolist() == [0, 1, 2, 3, 4, 5]


def test_views_of_other_orders_and_bytes_are_laid_out_alike() -> None:
    plain = actor()
    odd = {**plain, "hidden.weight": np.asfortranarray(plain["hidden.weight"]), "mean": plain["mean"].astype(">f8")}
    spec = WeightSpec.of(plain)
    spec.check(odd)
    assert spec == WeightSpec.of(odd)
    assert spec.flatten(odd).tail == spec.flatten(plain).tail
    assert kit.same_bits(spec.flatten(odd).vector, spec.flatten(plain).vector)


def test_weights_in_another_order_of_names_are_the_same_weights() -> None:
    spec = WeightSpec.of(actor())
    turned = dict(reversed(actor().items()))
    spec.check(turned)
    assert kit.same_bits(spec.flatten(turned).vector, spec.flatten(actor()).vector)


def test_pieces_of_the_tail_are_aligned_and_float32_are_views() -> None:
    weights: dict[str, kit.Array] = {"flag": np.array([True]), "x": np.array([1.5]), "w": np.ones(2, np.float32)}
    spec = WeightSpec.of(weights)
    flat = spec.flatten(weights)
    back = spec.unflatten(flat)
    assert back["x"].flags.aligned
    assert np.shares_memory(back["w"], flat.vector)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": np.zeros(1)}, "tensor 'extra' was not there when the policy was attached"),
        ({"log_std": None}, "tensor 'log_std' of the attached policy is missing"),
        (
            {"log_std": np.zeros(3, np.float32)},
            r"tensor 'log_std' has shape \(3,\), and had \(2,\) when it was attached",
        ),
        ({"steps": np.int32(7)}, "tensor 'steps' has dtype int32, and had int64 when it was attached"),
        (
            {"hidden.weight": np.array([[1, np.nan, 2], [np.inf, 3, 4]], np.float32)},
            "tensor 'hidden.weight' has 2 of 6 values that are not finite. Nothing was published",
        ),
        ({"mean": np.array([-np.inf, 0.0])}, "tensor 'mean' has 1 of 2 values that are not finite"),
    ],
)
def test_other_weights_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    weights = {name: value for name, value in {**actor(), **change}.items() if value is not None}
    with pytest.raises(WeightsError, match=message):
        WeightSpec.of(actor()).check(weights)


def test_the_first_difference_is_the_one_that_is_told() -> None:
    weights = actor()
    weights["log_std"] = np.full(2, np.nan, np.float32)
    weights["mean"] = np.full(2, np.nan)
    with pytest.raises(WeightsError, match="'log_std' has 2 of 2"):
        WeightSpec.of(actor()).check(weights)


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([object()])])
def test_what_is_not_a_number_is_no_weight(value: kit.Array) -> None:
    with pytest.raises(ConfigError, match=r"tensor 'name' has dtype .* no number that can travel"):
        WeightSpec.of({"name": value})


def test_a_spec_that_came_from_elsewhere_is_checked() -> None:
    with pytest.raises(ConfigError, match="two tensors are named 'w'"):
        WeightSpec((TensorSpec("w", (1,), "<f4"), TensorSpec("w", (1,), "<f4")))
    with pytest.raises(ConfigError, match="dtype 'f4,f4', which is no number"):
        WeightSpec((TensorSpec("w", (1,), "f4,f4"),))
    with pytest.raises(ConfigError, match=r"shape \(2, -1\)"):
        WeightSpec((TensorSpec("w", (2, -1), "<f4"),))


def test_flat_memory_of_another_policy_is_refused() -> None:
    spec = WeightSpec.of(actor())
    with pytest.raises(WeightsError, match=r"3 floats and 24 bytes cannot be split .* take 8 floats and 24 bytes"):
        spec.unflatten(Flat(np.zeros(3, np.float32), bytes(24)))
    with pytest.raises(WeightsError, match="8 floats and 1 bytes"):
        spec.unflatten(Flat(np.zeros(8, np.float32), bytes(1)))


def test_the_hash_tells_layouts_apart() -> None:
    base = WeightSpec.of(actor())
    others: list[dict[str, kit.Array]] = [
        {**actor(), "more": np.zeros(1)},
        {**actor(), "log_std": np.zeros((2, 1), np.float32)},
        {**actor(), "steps": np.array(7, np.uint64)},
        dict(reversed(actor().items())),
    ]
    assert WeightSpec.of(actor()).hash == base.hash
    assert len({base.hash, *(WeightSpec.of(other).hash for other in others)}) == 5
