"""Stacks of frames that are built again are those that the environment showed, bit by bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.errors import ConfigError
from clusterenv.learners.replay.frames import depths
from clusterenv.learners.replay.sequences import SequenceReplay
from clusterenv.learners.replay.transitions import TransitionReplay
from clusterenv.spaces import Leaf
from tests.learners.replay.kit import ACTION, World

if TYPE_CHECKING:
    from clusterenv.env.batch import Batch

SLOTS, DEPTH = 2, 4
SPACE = spaces.Dict(
    image=spaces.Box(0, 255, (DEPTH, 2, 3), np.uint8), number=spaces.Box(-np.inf, np.inf, (), np.float64)
)


class Films:
    """Shows the observations of a world, which are numbers, as stacks of frames too.

    Args:
        repeats: an episode begins with its first frame in all places, as that of Atari; otherwise with zeros.
    """

    def __init__(self, *, repeats: bool) -> None:
        self.repeats = repeats
        self.stacks: dict[float, Any] = {}

    def batch(self, plain: Batch) -> Batch:
        """The same batch. What it ends with must be where the next of that slot begins."""
        finals = {(t, n): i for i, (t, n) in enumerate(zip(*(at.tolist() for at in plain.final_at), strict=True))}
        images = np.zeros((*plain.obs.shape, DEPTH, 2, 3), np.uint8)
        lasts = np.zeros((len(plain.final_obs), DEPTH, 2, 3), np.uint8)
        for n in range(plain.N):
            for t in range(plain.T + 1):
                number = float(plain.obs[t, n])
                if plain.first[t, n]:
                    self.stacks[number] = self._begin(number)
                elif t:
                    self.stacks[number] = self._moved(images[t - 1, n], number)
                elif number not in self.stacks:  # somebody else has played before
                    self.stacks[number] = self._moved(np.random.default_rng(n).integers(9, size=(DEPTH, 2, 3)), number)
                images[t, n] = self.stacks[number]
                if (t, n) in finals:
                    last = float(plain.final_obs[finals[t, n]])
                    self.stacks[last] = lasts[finals[t, n]] = self._moved(images[t, n], last)
        plain.obs = {"image": images, "number": plain.obs}
        plain.final_obs = {"image": lasts, "number": plain.final_obs}
        return plain

    def _frame(self, number: float) -> Any:
        return np.random.default_rng(int(number)).integers(256, size=(2, 3))

    def _begin(self, number: float) -> Any:
        stack = np.zeros((DEPTH, 2, 3), np.uint8)
        stack[... if self.repeats else -1] = self._frame(number)
        return stack

    def _moved(self, stack: Any, number: float) -> Any:
        return np.concatenate([stack[1:], self._frame(number)[None]]).astype(np.uint8)


@st.composite
def films(draw: st.DrawFn) -> tuple[Films, list[Batch]]:
    world = World(SLOTS, draw(st.integers(0, 2**31)), ends=draw(st.sampled_from([0.0, 0.1, 0.5])))
    shown, plays = Films(repeats=draw(st.booleans())), []
    for _ in range(draw(st.integers(1, 12))):
        slot = draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=3))
        batch = shown.batch(world.play(draw(st.integers(1, 9)), slot, [draw(st.integers(0, 5)) == 0 for _ in slot]))
        if draw(st.integers(0, 3)):  # sometimes nobody gets to know what was played
            plays.append(batch)
    return shown, plays


def check(shown: Films, seen: Any, there: Any) -> None:
    for image, number in zip(seen["image"][there], seen["number"][there].tolist(), strict=True):
        assert np.array_equal(image, shown.stacks[number])


@given(films(), st.integers(1, 5))
def test_transitions_are_as_they_were_shown(film: Any, n_step: int) -> None:
    shown, plays = film
    replay = TransitionReplay(SPACE, ACTION, slots=SLOTS, capacity=40, n_step=n_step, stacked=True)
    for batch in plays:
        replay.add(batch)
    if len(replay):
        data = replay.sample(20 * len(replay)).data
        check(shown, data.obs, ...)
        check(shown, data.next_obs, data.discount > 0)


@given(films(), st.integers(0, 4))
def test_sequences_are_as_they_were_shown(film: Any, burn_in: int) -> None:
    shown, plays = film
    replay = SequenceReplay(SPACE, ACTION, slots=SLOTS, capacity=40, length=5, burn_in=burn_in, overlap=2, stacked=True)
    for batch in plays:
        replay.add(batch)
    if len(replay):
        data = replay.sample(20 * len(replay)).data
        check(shown, data.obs, data.obs["number"] > 0)
        assert not data.obs["image"][data.obs["number"] == 0].any()


def test_each_frame_is_kept_once() -> None:
    space = spaces.Box(0, 255, (DEPTH, 84, 84), np.uint8)
    replays = [TransitionReplay(space, ACTION, slots=2, capacity=1000, stacked=stacked) for stacked in (True, False)]
    assert replays[0].nbytes == pytest.approx(1000 * 84 * 84, rel=0.02)
    assert replays[1].nbytes == pytest.approx(1000 * 84 * 84 * DEPTH, rel=0.02)


def test_stacks_that_episodes_begin_with_go_with_their_steps() -> None:
    world, shown = World(SLOTS, ends=0.3), Films(repeats=False)
    replay = TransitionReplay(SPACE, ACTION, slots=SLOTS, capacity=40, stacked=True)
    sizes = set()
    for turn in range(40):
        replay.add(shown.batch(world.play(10, [0, 1])))
        if turn > 20:
            sizes.add(replay.nbytes)
    assert len(sizes) == 1


def test_what_is_no_stack_is_refused() -> None:
    space = spaces.Box(0, 255, (DEPTH, 2, 3), np.uint8)
    replay = TransitionReplay(space, ACTION, slots=1, capacity=20, stacked=True)
    batch = World(1, ends=0.0).play(4, [0])
    batch.obs = np.random.default_rng(0).integers(256, size=(5, 1, DEPTH, 2, 3)).astype(np.uint8)
    batch.final_obs = batch.obs[0, :0]
    with pytest.raises(ConfigError, match="newest last"):
        replay.add(batch)
    assert len(replay) == 0
    with pytest.raises(ConfigError, match=r"\(\(4,\), 'uint8'\)"):
        depths([Leaf((4,), np.dtype(np.uint8))], stacked=True)
