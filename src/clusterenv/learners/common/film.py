"""Episodes as moving pictures: a wrapper that keeps frames, and a file that any browser shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from clusterenv import extras

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

MAX_FRAMES = 1_000
_MAX_SIZE = (320, 320)  # in pixels; a thousand frames then stay below 100 MB
_COLOURS = 64


class Film(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the frames of the first episode, from its first observation to its last.

    Args:
        env: made with `render_mode="rgb_array"`.
        max_frames: of a longer episode the beginning is kept.

    Attributes:
        frames: as small pictures.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], max_frames: int = MAX_FRAMES) -> None:
        super().__init__(env)
        self._images: Any = extras.load("PIL.Image", extra="train", purpose="--video")
        self._max_frames, self._over = max_frames, False
        self.frames: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's; what was filmed of an episode that nobody finished is gone."""
        told = self.env.reset(seed=seed, options=options)
        if not self._over:
            self.frames = []
            self._shoot()
        return told

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's."""
        told = self.env.step(action)
        if not self._over:
            self._shoot()
            self._over = told[2] or told[3]
        return told

    def _shoot(self) -> None:
        if len(self.frames) == self._max_frames:
            return
        picture = self._images.fromarray(self.env.render())
        picture.thumbnail(_MAX_SIZE)
        self.frames.append(picture.quantize(_COLOURS, method=self._images.Quantize.FASTOCTREE))


def save_gif(path: str | os.PathLike[str], frames: Sequence[Any], fps: float) -> None:
    """Write pictures as one that moves."""
    first, *rest = frames
    # A GIF counts in hundredths of a second, and browsers slow down what is faster than two of these.
    duration = max(20, round(1_000 / fps))
    first.save(path, save_all=True, append_images=rest, duration=duration, loop=0)
