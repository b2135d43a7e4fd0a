"""Episodes as moving pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from clusterenv.learners.common.film import Film, save_gif

if TYPE_CHECKING:
    import pathlib


class Counter(gymnasium.Env[Any, Any]):
    """Shows how many steps it is old, as a shade of gray, on a screen that is wider than a film."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)
    render_mode = "rgb_array"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.age = 0
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return 0, 0.0, False, self.age == 5, {}

    def render(self) -> Any:
        return np.full((200, 640, 3), 40 * self.age, np.uint8)


def shades(film: Film) -> list[int]:
    return [frame.convert("RGB").getpixel((0, 0))[0] for frame in film.frames]


def test_the_first_episode_is_kept_from_its_first_observation_to_its_last() -> None:
    film = Film(Counter())
    film.reset()
    for _ in range(5):
        film.step(0)
    film.reset()
    film.step(0)
    assert shades(film) == [0, 40, 80, 120, 160, 200]
    assert film.frames[0].size == (320, 100)


def test_an_episode_that_was_begun_and_left_is_not_kept() -> None:
    film = Film(Counter())
    film.reset()
    film.step(0)
    film.reset()
    assert shades(film) == [0]


def test_of_a_long_episode_the_beginning_is_kept() -> None:
    film = Film(Counter(), max_frames=3)
    film.reset()
    for _ in range(5):
        film.step(0)
    assert shades(film) == [0, 40, 80]


@pytest.mark.parametrize(("fps", "duration"), [(10, 100), (1_000, 20)])
def test_the_file_moves(tmp_path: pathlib.Path, fps: float, duration: int) -> None:
    film = Film(Counter())
    film.reset()
    film.step(0)
    save_gif(tmp_path / "film.gif", film.frames, fps)
    with Image.open(tmp_path / "film.gif") as image:
        assert (image.n_frames, image.info["duration"]) == (2, duration)  # type: ignore[attr-defined]
