"""The limit of what a machine can play: one process per core, each a plain loop over its environments, nothing else."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from types import TracebackType

START_LIMIT_S = 120.0
END_LIMIT_S = 10.0
WARM_UP_S = 1.0


class BareLoops:
    """Processes that play when they are asked to, and do nothing in between.

    So that a machine whose speed changes from minute to minute can be measured in turns with what is to be compared.

    Args:
        env_id: what each of them plays, with random actions and no policy.
        env_args: of the environment, as on the command line.
        cores: how many processes.
        envs_per_core: environments of each.
    """

    def __init__(self, env_id: str, env_args: Sequence[str], cores: int, envs_per_core: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._loops: list[tuple[Any, Connection]] = []
        for core in range(cores):
            ours, theirs = spawn.Pipe()
            seeds = range(core * envs_per_core, (core + 1) * envs_per_core)
            process = spawn.Process(target=_serve, args=(theirs, env_id, tuple(env_args), seeds), daemon=True)
            process.start()
            theirs.close()  # so that its end is seen here
            self._loops.append((process, ours))

    def __enter__(self) -> BareLoops:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, connection in self._loops:
            connection.close()
            process.join(END_LIMIT_S)

    def steps_per_s(self, seconds: float) -> float:
        """Steps per second of all together, after a second in which caches and clocks settle."""
        for _, connection in self._loops:
            connection.send(seconds)
        return sum(_answer(connection, START_LIMIT_S + WARM_UP_S + seconds) for _, connection in self._loops)


def _answer(connection: Connection, limit_s: float) -> float:
    if not connection.poll(limit_s):
        raise RuntimeError(f"a bare loop has not answered within {limit_s:.0f} s.")
    try:
        rate: float = connection.recv()
    except (EOFError, ConnectionError) as error:
        raise RuntimeError("a bare loop has ended; what it wrote above says why.") from error
    return rate


def _serve(connection: Connection, env_id: str, env_args: tuple[str, ...], seeds: range) -> None:
    """Play for as long as is asked, again and again, until nobody asks any more."""
    import gymnasium

    import clusterenv  # noqa: F401 - it registers its own environments
    from clusterenv.learners.common.env_args import parse_env_args

    envs = [gymnasium.make(env_id, disable_env_checker=True, **parse_env_args(env_args)) for _ in seeds]
    for seed, env in zip(seeds, envs, strict=True):
        env.reset(seed=seed)
        env.action_space.seed(seed)
    actions = [[env.action_space.sample() for env in envs] for _ in range(64)]
    while True:
        try:
            seconds = connection.recv()
        except EOFError:
            return
        _rate(envs, actions, WARM_UP_S)
        connection.send(_rate(envs, actions, seconds))


def _rate(envs: list[Any], actions: list[list[Any]], seconds: float) -> float:
    rounds, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
        for env, action in zip(envs, actions[rounds % len(actions)], strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        rounds += 1
    return rounds * len(envs) / taken
