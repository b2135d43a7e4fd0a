"""Weights as bytes: every encoding comes back as it must, and nothing damaged gets through."""

from __future__ import annotations

import dataclasses
import struct

import hypothesis.strategies as st
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings

from clusterenv.errors import ConfigError, WeightsCorrupt
from clusterenv.sync.codec import ENCODINGS, KINDS, Decoded, Encoded, EncodeOnce, decode, encode, rounded
from clusterenv.sync.versions import Version
from clusterenv.sync.weights import Flat, WeightSpec
from tests.sync import kit
from tests.sync.kit import V0, V1, V2


def bf16_by_hand(value: np.float32) -> float:
    """Of the two bfloat16 neighbours the nearer, of two equally near the even one; never infinite."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    down, up = bits & 0xFFFF0000, (bits & 0xFFFF0000) + 0x10000
    below, above = (struct.unpack("<f", struct.pack("<I", word & 0xFFFFFFFF))[0] for word in (down, up))
    if not np.isfinite(above):
        return float(below)
    left, right = abs(float(value) - below), abs(above - float(value))
    return float(below if left < right or (left == right and not (down >> 16) & 1) else above)


def policy(seed: int = 0, count: int = 2000) -> dict[str, kit.Array]:
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(0, 0.1, count).astype(np.float32), "steps": np.array([seed], np.int64)}


def held(weights: dict[str, kit.Array], version: Version, encoding: str = "bf16-delta") -> tuple[WeightSpec, Decoded]:
    spec = WeightSpec.of(weights)
    return spec, rounded(spec.flatten(weights), version, encoding)


def same(left: Flat, right: Flat) -> bool:
    return kit.same_bits(left.vector, right.vector) and left.tail == right.tail


@given(kit.two_versions(), st.sampled_from(ENCODINGS), st.booleans())
@settings(max_examples=150)
def test_the_receiver_holds_what_the_sender_says(
    versions: tuple[dict[str, kit.Array], dict[str, kit.Array]], encoding: str, with_base: bool
) -> None:
    spec, first = held(versions[0], V0, encoding)
    _, second = held(versions[1], V1, encoding)
    base = first if with_base else None
    encoded = encode(spec, second, encoding, base)
    decoded = decode(spec, encoded, base)
    assert decoded.version == V1
    assert same(decoded.flat, second.flat)
    assert encoded.kind in KINDS
    assert (encoded.base_version == V0) == (encoded.kind == "bf16-delta")


@given(kit.weights())
@settings(max_examples=60)
def test_fp32_loses_nothing(weights: dict[str, kit.Array]) -> None:
    spec, target = held(weights, V0, "fp32")
    back = spec.unflatten(decode(spec, encode(spec, target, "fp32")).flat)
    assert all(kit.same_bits(back[name], weights[name]) for name in weights)


@given(kit.weights())
@settings(max_examples=60)
def test_bf16_rounds_only_float32(weights: dict[str, kit.Array]) -> None:
    spec, target = held(weights, V0, "bf16")
    back = spec.unflatten(decode(spec, encode(spec, target, "bf16")).flat)
    for name, value in weights.items():
        if value.dtype == np.float32:
            expected = np.array([bf16_by_hand(x) for x in value.ravel()], np.float32).reshape(value.shape)
            assert kit.same_bits(back[name], expected)
        else:
            assert kit.same_bits(back[name], value)


@given(st.lists(kit.FINITE_BITS, max_size=20))
@settings(max_examples=60)
def test_rounding_twice_is_rounding_once(bits: list[int]) -> None:
    vector = np.array(bits, np.uint32).view(np.float32)
    once = rounded(Flat(vector, b""), V0, "bf16").flat
    assert same(rounded(once, V0, "bf16").flat, once)


def test_the_largest_numbers_stay_finite_and_others_stay_what_they_are() -> None:
    big = np.finfo(np.float32).max
    vector = np.array([big, -big, np.inf, -np.inf, np.nan, -0.0, 1.0], np.float32)
    result = rounded(Flat(vector, b""), V0, "bf16").flat.vector
    assert result[:2].tolist() == [3.3895313892515355e38, -3.3895313892515355e38]
    assert result[2:4].tolist() == [np.inf, -np.inf]
    assert np.isnan(result[4])
    assert (float(result[5]), np.signbit(result[5]), float(result[6])) == (0.0, True, 1.0)


@pytest.mark.parametrize("weights", [{}, {"empty": np.zeros((0, 3), np.float32)}, {"one": np.float32(2.5)}])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_next_to_nothing_travels_too(weights: dict[str, kit.Array], encoding: str) -> None:
    spec, target = held(weights, V1, encoding)
    _, base = held(weights, V0, encoding)
    for have in (None, base):
        assert same(decode(spec, encode(spec, target, encoding, have), have).flat, target.flat)


def test_sizes_are_exact() -> None:
    spec, target = held(policy(), V0)
    assert encode(spec, target, "fp32").nbytes == 4 * 2000 + 8
    assert encode(spec, target, "bf16").nbytes == 2 * 2000 + 8
    assert encode(spec, target, "bf16-delta").nbytes == len(encode(spec, target, "bf16-delta").payload)


def test_a_key_frame_is_smaller_than_bf16_and_no_change_costs_next_to_nothing() -> None:
    spec, target = held(policy(), V0)
    assert encode(spec, target, "bf16-delta").nbytes < 0.9 * encode(spec, target, "bf16").nbytes
    again = dataclasses.replace(target, version=V1)
    assert encode(spec, again, "bf16-delta", target).nbytes < 40


@pytest.mark.parametrize(("rate", "at_least"), [(2.5e-4, 6), (3e-5, 12), (3e-6, 35)])
def test_a_small_adam_step_shrinks_a_lot(rate: float, at_least: float) -> None:
    # Adam's first step moves each weight by the learning rate, up or down.
    rng = np.random.default_rng(1)
    start = {"w": rng.normal(0, 1 / 8, (64, 64)).astype(np.float32)}
    moved = {"w": start["w"] + (rate * rng.choice([-1.0, 1.0], (64, 64))).astype(np.float32)}
    spec, base = held(start, V0)
    _, target = held(moved, V1)
    assert 4 * 4096 / encode(spec, target, "bf16-delta", base).nbytes > at_least


def test_a_base_that_was_never_rounded_serves_as_well() -> None:
    spec, exact = held(policy(), V0, "fp32")
    _, target = held(policy(1), V1)
    encoded = encode(spec, target, "bf16-delta", exact)
    assert same(decode(spec, encoded, exact).flat, target.flat)


def test_a_chain_of_deltas_does_not_drift() -> None:
    spec, mine = held(policy(), V0)
    theirs = decode(spec, encode(spec, mine, "bf16-delta"))
    for number in range(1, 6):
        _, target = held(policy(number), Version(0, number))
        theirs = decode(spec, encode(spec, target, "bf16-delta", mine), theirs)
        mine = target
        assert same(theirs.flat, mine.flat)


@pytest.mark.fault("F33")
@pytest.mark.parametrize("encoding", ENCODINGS)
@given(data=st.data())
@settings(max_examples=40)
def test_no_flipped_bit_gets_through(encoding: str, data: st.DataObject) -> None:
    spec, base = held(policy(), V0, encoding)
    _, target = held(policy(1), V1, encoding)
    encoded = encode(spec, target, encoding, base)
    payload = bytearray(encoded.payload)
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded = decode(spec, dataclasses.replace(encoded, payload=bytes(payload)), base)
    except WeightsCorrupt:
        return
    # A frame's header has bits without meaning; whatever gets through must be what was sent.
    assert same(decoded.flat, target.flat)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("damage", [lambda p: p[:-1], lambda p: p + b"\0", lambda p: b"", lambda p: p[1:]])
def test_a_payload_of_the_wrong_size_is_refused(encoding: str, damage: object) -> None:
    assert callable(damage)
    spec, target = held(policy(), V0, encoding)
    encoded = encode(spec, target, encoding)
    with pytest.raises(WeightsCorrupt, match=r"version 0\.0"):
        decode(spec, dataclasses.replace(encoded, payload=damage(encoded.payload)))


def test_a_frame_that_announces_another_size_is_refused_before_it_is_opened() -> None:
    spec, target = held(policy(), V0)
    bomb = zstandard.compress(bytes(50_000_000))
    encoded = dataclasses.replace(encode(spec, target, "bf16-delta"), payload=bomb)
    with pytest.raises(WeightsCorrupt, match="announce 50000000 bytes; this policy's take 4008"):
        decode(spec, encoded)


def test_a_frame_that_announces_no_size_is_refused() -> None:
    spec, target = held(policy(), V0)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(4008))
    with pytest.raises(WeightsCorrupt, match="announce -1 bytes"):
        decode(spec, dataclasses.replace(encode(spec, target, "bf16-delta"), payload=silent))


@pytest.mark.fault("F33")
def test_a_frame_that_holds_less_than_it_announces_is_refused() -> None:
    spec, target = held(policy(), V0)
    honest = zstandard.compress(bytes(range(256)) * 15 + bytes(168))
    with pytest.raises(WeightsCorrupt):
        decode(spec, dataclasses.replace(encode(spec, target, "bf16-delta"), payload=honest[: len(honest) // 2]))


@pytest.mark.parametrize("base", [None, V2])
def test_a_delta_to_something_else_is_refused(base: Version | None) -> None:
    spec, first = held(policy(), V0)
    encoded = encode(spec, held(policy(1), V1)[1], "bf16-delta", first)
    have = None if base is None else dataclasses.replace(first, version=base)
    words = "nothing" if base is None else "version 0.2"
    with pytest.raises(WeightsCorrupt, match=f"difference to version 0.0, and the receiver holds {words}. Ask"):
        decode(spec, encoded, have)


def test_a_base_with_the_right_number_and_other_weights_is_found_out() -> None:
    spec, first = held(policy(), V0)
    encoded = encode(spec, held(policy(1), V1)[1], "bf16-delta", first)
    impostor = rounded(spec.flatten(policy(5)), V0, "bf16-delta")
    with pytest.raises(WeightsCorrupt, match=r"version 0\.1 \(bf16-delta\) do not have the hash"):
        decode(spec, encoded, impostor)


def test_the_same_bytes_under_other_names_are_other_weights() -> None:
    spec, target = held({"a": np.ones(3, np.float32), "b": np.zeros(3, np.float32)}, V0)
    other = WeightSpec.of({"b": np.ones(3, np.float32), "a": np.zeros(3, np.float32)})
    with pytest.raises(WeightsCorrupt, match="hash"):
        decode(other, encode(spec, target, "bf16"))


def test_an_unknown_kind_or_encoding_is_refused_with_the_nearest_name() -> None:
    spec, target = held(policy(), V0)
    with pytest.raises(WeightsCorrupt, match=r"unknown kind of weights 'bf61'\. Did you mean 'bf16'"):
        decode(spec, Encoded("bf61", b"", None, V0, b""))
    with pytest.raises(ConfigError, match=r"unknown encoding 'bf16delta'\. Did you mean 'bf16-delta'"):
        encode(spec, target, "bf16delta")
    with pytest.raises(ConfigError, match="unknown encoding 'fp16'"):
        EncodeOnce(spec, "fp16")


def test_encode_once_does_it_once_for_each_base() -> None:
    spec, _ = held(policy(), V0)
    once = EncodeOnce(spec)
    once.offer(V0, spec.flatten(policy()))
    first = once.target()
    assert once.target() is first
    assert once.encode(None) is once.encode(None)
    assert once.encode(None).kind == "bf16-key"
    once.offer(V1, spec.flatten(policy(1)))
    delta = once.encode(first)
    assert once.encode(first) is delta
    assert (delta.kind, delta.base_version, delta.version) == ("bf16-delta", V0, V1)
    assert once.encode(None).kind == "bf16-key"
    assert same(decode(spec, delta, first).flat, once.target().flat)


def test_encode_once_sends_only_the_newest() -> None:
    spec, _ = held(policy(), V0)
    once = EncodeOnce(spec)
    for version, seed in ((V0, 0), (V1, 1)):
        once.offer(version, spec.flatten(policy(seed)))
        assert once.version == once.encode(None).version == version


def test_encode_once_needs_no_base_where_there_is_no_delta() -> None:
    spec, first = held(policy(), V0, "bf16")
    once = EncodeOnce(spec, "bf16")
    once.offer(V1, spec.flatten(policy(1)))
    assert once.encode(first) is once.encode(None)


def test_encode_once_knows_the_newest_weights_bit_for_bit() -> None:
    weights = {"w": np.array([0.0, 1.0], np.float32), "steps": np.array(7)}
    spec = WeightSpec.of(weights)
    once = EncodeOnce(spec)
    once.offer(V0, spec.flatten(weights))
    assert once.same(spec.flatten({**weights}))
    after_one = np.nextafter(np.float32(1.0), np.float32(2.0))
    for numbers in ([-0.0, 1.0], [0.0, after_one]):
        assert not once.same(spec.flatten({**weights, "w": np.array(numbers, np.float32)}))
    assert not once.same(spec.flatten({**weights, "steps": np.array(8)}))


def test_encode_once_without_weights_says_so() -> None:
    spec = WeightSpec.of(policy())
    once = EncodeOnce(spec)
    for ask in (once.target, lambda: once.version, lambda: once.same(spec.flatten(policy()))):
        with pytest.raises(ConfigError, match="no weights have been offered yet"):
            ask()
