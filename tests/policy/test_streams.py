"""The random streams: a slot's numbers are its own, however and with whomever they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.policy.streams import Streams

noises = st.sampled_from(["uniform", "normal"])
few = settings(max_examples=25, deadline=None)


@few
@given(noises, st.integers(0, 2**64), st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(1, 3))
def test_how_many_steps_are_drawn_at_a_time_does_not_matter(
    noise: str, seed: int, parts: list[int], count: int
) -> None:
    streams = Streams(seed, range(3))
    pieces = np.concatenate([streams.draw(steps, count, noise) for steps in parts])
    whole = Streams(seed, range(3)).draw(sum(parts), count, noise)
    assert whole.shape == (sum(parts), 3, count)
    np.testing.assert_array_equal(pieces, whole)


@few
@given(noises, st.integers(0, 20), st.integers(1, 5), st.integers(0, 4))
def test_the_neighbours_do_not_matter(noise: str, start: int, slots: int, row: int) -> None:
    block = range(start, start + slots)
    row %= slots
    alone = Streams(3, range(start + row, start + row + 1)).draw(4, 2, noise)
    np.testing.assert_array_equal(Streams(3, block).draw(4, 2, noise)[:, row], alone[:, 0])


def test_who_draws_alone_is_as_far_as_with_the_others() -> None:
    streams, whole = Streams(5, range(3)), Streams(5, range(3)).draw(6, 1, "uniform")
    np.testing.assert_array_equal(streams.draw(4, 1, "uniform", rows=[2, 0]), whole[:4, [2, 0]])
    np.testing.assert_array_equal(
        streams.draw(2, 1, "uniform"), np.stack([whole[4:, 0], whole[:2, 1], whole[4:, 2]], 1)
    )


def test_slots_and_seeds_differ() -> None:
    drawn = np.concatenate([Streams(seed, range(4)).draw(6, 1, "uniform")[:, :, 0] for seed in (0, 1, 2)], axis=1)
    assert len(np.unique(drawn.T, axis=0)) == 12


def test_without_a_seed_nothing_repeats() -> None:
    first, second = (Streams(None, range(2)).draw(4, 1, "uniform") for _ in range(2))
    assert len(np.unique(np.concatenate([first, second], axis=1)[:, :, 0].T, axis=0)) == 4


def test_the_numbers_are_what_their_name_says() -> None:
    uniform = Streams(1, range(4)).draw(10_000, 1, "uniform")
    normal = Streams(1, range(4)).draw(10_000, 1, "normal")
    for drawn in (uniform, normal):
        assert drawn.dtype == np.float32
        assert drawn.flags.c_contiguous
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.01)
    assert uniform.var() == pytest.approx(1 / 12, abs=0.005)
    assert normal.mean() == pytest.approx(0, abs=0.03)
    assert normal.std() == pytest.approx(1, abs=0.03)


def test_the_numbers_of_a_seed_are_for_ever() -> None:
    # Runs are repeated from their seed: a change here changes every one of them.
    expected = np.random.default_rng(np.random.SeedSequence((5, 2))).random(3, dtype=np.float32)
    np.testing.assert_array_equal(Streams(5, range(2, 3)).draw(3, 1, "uniform")[:, 0, 0], expected)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"seed=-1 must be a whole number of at least 0"):
        Streams(-1, range(2))
    with pytest.raises(ConfigError, match=r"seed='7' must be a whole number"):
        Streams("7", range(2))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"unknown noise 'uniforn'\. Did you mean 'uniform'\?"):
        Streams(1, range(2)).draw(1, 1, "uniforn")
