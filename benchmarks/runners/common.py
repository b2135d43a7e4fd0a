"""What every runner shares: the environments, the actions, the clock and the result file.

A runner is started by the harness as `python -m benchmarks.runners.NAME SPEC RESULT`, in an interpreter
that holds its own library and perhaps nothing of ours, so this file needs only Gymnasium and NumPy.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

ROWS = 64
"""Batches of actions that are sampled beforehand and then used round and round."""

WARMUP_LIMIT_S = 15.0

PACKAGES = (
    "clusterenv",
    "gymnasium",
    "numpy",
    "ale-py",
    "stable-baselines3",
    "torch",
    "torchrl",
    "tianshou",
    "pufferlib",
    "envpool",
)


@dataclass(frozen=True)
class Spec:
    """One slice: what to step, with how many processes, for how long."""

    env_id: str
    preset: str
    """`plain`, or `atari`: four frames skipped, 84 x 84 grey, four frames stacked."""
    num_envs: int
    workers: int
    seconds: float
    warmup_s: float
    warmup_steps: int
    """Steps of each environment before the clock starts: a few episodes, see `warm`."""
    seed: int
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """How many environment steps were made in how many seconds."""

    steps: int
    seconds: float


def env_id_here(spec: Spec) -> str:
    """Return the id of the workload's environment in the Gymnasium that is installed here.

    Gymnasium before 1.0 knows LunarLander only as v2, and PufferLib's pins hold such a Gymnasium.
    """
    old = int(gym.__version__.split(".")[0]) < 1
    return spec.env_id.replace("LunarLander-v3", "LunarLander-v2") if old else spec.env_id


def env_kwargs(preset: str) -> dict[str, Any]:
    """Return the arguments of `gymnasium.make`, the same for every contender.

    The passive checker is left out for all, because some leave it out anyway (ClusterEnv in all slots but the
    first, TorchRL in all): with it, the others would step one wrapper more.
    """
    # AtariPreprocessing wants to skip the frames itself.
    return {"disable_env_checker": True, **({"frameskip": 1} if preset == "atari" else {})}


def env_wrappers(preset: str) -> list[Callable[[Any], Any]]:
    """Return the wrappers of one environment, innermost first."""
    if preset != "atari":
        return []
    from gymnasium import wrappers

    stack: Any = getattr(wrappers, "FrameStackObservation", None) or getattr(wrappers, "FrameStack")  # noqa: B009
    preprocess = partial(wrappers.AtariPreprocessing, frame_skip=4, screen_size=84, grayscale_obs=True)
    # Positional, because Gymnasium before 1.0 calls the same argument by another name.
    return [preprocess, partial(_stack_frames, stack)]


def _stack_frames(stack: Any, env: Any) -> Any:
    return stack(env, 4)


def make_env(env_id: str, preset: str) -> Any:
    """Build one environment the way `gymnasium.make_vec` does."""
    env: Any = gym.make(env_id, **env_kwargs(preset))
    for wrapper in env_wrappers(preset):
        env = wrapper(env)
    return env


def env_maker(spec: Spec) -> Callable[[], Any]:
    """Return a function without arguments that builds one environment; it can be pickled."""
    return partial(make_env, env_id_here(spec), spec.preset)


def num_actions(spec: Spec) -> int:
    """Return the number of actions, all workloads being discrete; the probe environment is closed again."""
    env = env_maker(spec)()
    try:
        return int(env.action_space.n)
    finally:
        env.close()


def action_table(actions: int, columns: int, seed: int, dtype: Any = np.int64) -> NDArray[Any]:
    """Sample `ROWS` batches of valid actions, so that nobody pays for sampling while the clock runs."""
    return np.random.default_rng(seed).integers(0, actions, size=(ROWS, columns)).astype(dtype)


class RealSteps:
    """Counts the rows of a batch that were steps.

    Under next-step autoreset the row after the end of an episode is a reset. Peers that reset within the
    step have no such rows, so counting rows would credit next-step libraries with steps nobody made.
    """

    def __init__(self) -> None:
        self._ended = 0

    def count(self, terminated: NDArray[Any], truncated: NDArray[Any]) -> int:
        """Return the steps in the batch with these flags, and remember how many episodes ended in it."""
        steps = len(terminated) - self._ended
        self._ended = int(np.count_nonzero(terminated | truncated))
        return steps


def warm(elapsed_s: float, steps: int, spec: Spec, num_envs: int) -> bool:
    """Tell whether the warm-up may end after this time and these steps of `num_envs` environments.

    All episodes begin together, and in LunarLander a fall is cheap while a landing and a reset are not. The
    clock must not start before the episodes have drifted apart, or a slow contender, still in its first
    episode when the slice ends, is measured on cheaper steps than a fast one.
    """
    enough = elapsed_s >= spec.warmup_s and steps >= spec.warmup_steps * num_envs
    return enough or elapsed_s >= spec.warmup_s + WARMUP_LIMIT_S


def measure(step: Callable[[int], int], spec: Spec) -> Sample:
    """Call `step(i)` for the time that `spec` gives, after a warm-up, and add up what it returns."""
    i = steps = 0
    start = time.perf_counter()
    while not warm(time.perf_counter() - start, steps, spec, spec.num_envs):
        steps += step(i)
        i += 1
    steps = 0
    start = now = time.perf_counter()
    until = start + spec.seconds
    while now < until:
        steps += step(i)
        i += 1
        now = time.perf_counter()
    return Sample(steps, now - start)


def run(build: Callable[[Spec], AbstractContextManager[Callable[[int], int]]]) -> None:
    """Be the main program of a runner whose `build` yields a step function and closes after it."""

    def sample(spec: Spec) -> Sample:
        with build(spec) as step:
            return measure(step, spec)

    run_sampler(sample)


def run_sampler(sampler: Callable[[Spec], Sample]) -> None:
    """Be the main program of a runner that does its own timing."""
    spec = Spec(**json.loads(sys.argv[1]))
    sample = sampler(spec)
    result = {
        "steps": sample.steps,
        "seconds": sample.seconds,
        "env_id": env_id_here(spec),
        "versions": _versions(),
    }
    # A file, not standard output: several libraries write there, some from other processes.
    Path(sys.argv[2]).write_text(json.dumps(result))


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
