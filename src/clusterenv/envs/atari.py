"""Atari games as reinforcement learning plays them: gray, small, four frames at a time.

It works on the emulator itself, without an environment in between, so nothing is drawn that nobody looks at.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from clusterenv import extras
from clusterenv.envs import EPISODE_CONTINUES
from clusterenv.errors import ConfigError, unknown

_NOOP = 0  # the first action of every game
_FIRE, _AFTER_FIRE = 1, 2


class Atari(gymnasium.Env[Any, Any]):
    """A game of the Arcade Learning Environment with the usual preprocessing.

    Observation: [stack, size, size] uint8, the newest frame last; after a reset the first frame, repeated. A frame is
    the brightest of each pixel in the last two screens (many games draw a thing in every other one only; with
    `frame_skip=1` there is one), gray, and made smaller by the mean over areas. Rewards are the game's, not clipped.

    With `episodic_life` every life is an episode for the learner, but the game goes on: the reset in between is one
    step of doing nothing. The info of such an end has "episode_continues", and `Batch.episodes` counts whole games.

    Args:
        game: "Pong", "SpaceInvaders", ... as in "ALE/SpaceInvaders-v5".
        episodic_life: whether the loss of a life ends an episode. For training; not for evaluation.
        noop_max: a new game begins with 1 to this many frames of doing nothing; 0 for none.
        frame_skip: how many frames an action lasts; its rewards are summed.
        fire_reset: begin by pressing the button in games that wait for it.
        stack: how many frames an observation holds.
        size: of a frame, in pixels.
        repeat_action_probability: how often the emulator repeats the action before, against memorised games.
        full_action_space: all 18 actions in the place of those that the game knows.
        max_frames: a game is cut (truncated) after this many frames; 108,000 are half an hour.
        render_mode: None or "rgb_array".
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 15}  # type: ignore[misc]

    def __init__(
        self,
        game: str = "Pong",
        *,
        episodic_life: bool = True,
        noop_max: int = 30,
        frame_skip: int = 4,
        fire_reset: bool = True,
        stack: int = 4,
        size: int = 84,
        repeat_action_probability: float = 0.0,
        full_action_space: bool = False,
        max_frames: int = 108_000,
        render_mode: str | None = None,
    ) -> None:
        if min(frame_skip, stack, size, max_frames) < 1 or noop_max < 0:
            raise ConfigError(
                f"frame_skip={frame_skip}, stack={stack}, size={size} and max_frames={max_frames} must be at least 1, "
                f"noop_max={noop_max} at least 0."
            )
        self.render_mode = render_mode
        self._resize = extras.load("cv2", extra="atari", purpose="Atari").resize
        self._area = extras.load("cv2", extra="atari", purpose="Atari").INTER_AREA
        self._rom = _rom_of(game)
        self._episodic_life, self._noop_max, self._frame_skip = episodic_life, noop_max, frame_skip
        self._ale = _emulator(repeat_action_probability, max_frames)
        self._ale.loadROM(self._rom)
        self._actions = self._ale.getLegalActionSet() if full_action_space else self._ale.getMinimalActionSet()
        self._fires = fire_reset and len(self._actions) > _AFTER_FIRE and self._actions[_FIRE].name == "FIRE"
        self._screens = np.zeros((2, *self._ale.getScreenDims()), np.uint8)
        self._frames = np.zeros((stack, size, size), np.uint8)
        self._lives, self._life_lost = 0, False
        self.observation_space = spaces.Box(0, 255, (stack, size, size), np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new game, or the next life after one was lost. With a seed always a new game."""
        super().reset(seed=seed)
        if seed is not None:
            self._ale.setInt("random_seed", int(self.np_random.integers(2**31 - 1)))
            self._ale.loadROM(self._rom)  # it looks at the seed only now
        if self._life_lost and seed is None:
            self._play(_NOOP)
        else:
            self._new_game()
        for action in (_FIRE, _AFTER_FIRE) if self._fires else ():
            self._play(action)
        self._life_lost, self._lives = False, self._ale.lives()
        self._see()
        self._frames[:-1] = self._frames[-1]
        return self._frames.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Press the buttons of one action for some frames."""
        reward = self._act(int(action))
        lives, before = self._ale.lives(), self._lives
        self._lives = lives
        terminated, truncated = self._ale.game_over(with_truncation=False), self._ale.game_truncated()
        # Some games stay at no lives for a while before they are over: that is not one more life.
        self._life_lost = self._episodic_life and 0 < lives < before and not (terminated or truncated)
        self._frames[:-1] = self._frames[1:]
        self._see()
        info = {EPISODE_CONTINUES: True} if self._life_lost else {}
        return self._frames.copy(), reward, terminated or self._life_lost, truncated, info

    def render(self) -> Any:
        """The screen in colours."""
        return self._ale.getScreenRGB() if self.render_mode == "rgb_array" else None

    def _new_game(self) -> None:
        self._ale.reset_game()
        for _ in range(int(self.np_random.integers(1, self._noop_max + 1)) if self._noop_max else 0):
            self._ale.act(self._actions[_NOOP])
            if self._ale.game_over():
                self._ale.reset_game()
        self._look(0)
        self._look(1)

    def _play(self, action: int) -> None:
        """An action that belongs to a reset; a game that it ends is followed by a new one."""
        self._act(action)
        if self._ale.game_over():
            self._new_game()

    def _act(self, action: int) -> float:
        """Hold the buttons; leaves the last two screens."""
        act, buttons, reward = self._ale.act, self._actions[action], 0.0
        over, last = self._ale.game_over, self._frame_skip - 1
        for frame in range(self._frame_skip):
            reward += act(buttons)
            if over():
                self._look(0)
                self._look(1)
                break
            if frame >= last - 1:
                self._look(last - frame)
            if last == 0:
                self._look(1)  # there is no other screen
        return reward

    def _look(self, place: int) -> None:
        self._ale.getScreenGrayscale(self._screens[place])

    def _see(self) -> None:
        """Make the newest frame of the last two screens."""
        brightest, newest = np.maximum(*self._screens), self._frames[-1]
        self._resize(brightest, newest.shape[::-1], dst=newest, interpolation=self._area)


def _emulator(repeat_action_probability: float, max_frames: int) -> Any:
    ale_py: Any = extras.load("ale_py", extra="atari", purpose="Atari")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # it greets everybody otherwise
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", repeat_action_probability)
    ale.setInt("max_num_frames_per_episode", max_frames)
    return ale


def _rom_of(game: str) -> Any:
    """Where the game is. "SpaceInvaders" and "space_invaders" are the same."""
    roms: Any = extras.load("ale_py.roms", extra="atari", purpose="Atari")
    known = {name.replace("_", ""): name for name in roms.get_all_rom_ids()}
    wanted = str(game).replace("_", "").lower()
    if wanted not in known:
        raise ConfigError(unknown("game", str(game), ["".join(map(str.title, n.split("_"))) for n in known.values()]))
    return roms.get_rom_path(known[wanted])
