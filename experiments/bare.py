"""The limit of what a machine can play: one process per core, each a plain loop over its environments, nothing else."""

from __future__ import annotations

import contextlib
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
    (`benchmarks/runners/bare_loop.py` starts anew for each slice, because there nothing else may exist meanwhile.)

    Args:
        env_id: what each of them plays, with random actions and no policy.
        env_args: of the environment, as on the command line.
        cores: how many processes.
        envs_per_core: environments of each.
    """

    def __init__(self, env_id: str, env_args: Sequence[str], cores: int, envs_per_core: int) -> None:
        self._plays, self._cores, self._envs = (env_id, tuple(env_args)), cores, envs_per_core
        self._loops: list[tuple[Any, Connection]] = []

    def __enter__(self) -> BareLoops:
        spawn = multiprocessing.get_context("spawn")
        try:
            for core in range(self._cores):
                ours, theirs = spawn.Pipe()
                seeds = range(core * self._envs, (core + 1) * self._envs)
                process = spawn.Process(target=_serve, args=(theirs, *self._plays, seeds), daemon=True)
                process.start()
                theirs.close()  # so that its end is seen here
                self._loops.append((process, ours))
            for core, (_, connection) in enumerate(self._loops):
                _answer(core, connection, START_LIMIT_S)  # it is ready: all are to play at the same time
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        for _, connection in self._loops:
            connection.close()
        for process, _ in self._loops:
            process.join(END_LIMIT_S)
            if process.is_alive():  # in a step that does not end, or interrupted in a long turn
                process.kill()
                process.join()

    def steps_per_s(self, seconds: float) -> float:
        """Steps per second of all together, after a second in which caches and clocks settle."""
        for _, connection in self._loops:
            with contextlib.suppress(ConnectionError):  # one that has ended has said why
                connection.send(seconds)
        limit_s = START_LIMIT_S + WARM_UP_S + seconds
        return sum(_answer(core, connection, limit_s) for core, (_, connection) in enumerate(self._loops))


def _answer(core: int, connection: Connection, limit_s: float) -> float:
    if not connection.poll(limit_s):
        raise RuntimeError(f"bare loop {core} has not answered within {limit_s:.0f} s. Is the environment stuck?")
    try:
        told: float | str = connection.recv()
    except (EOFError, ConnectionError) as error:
        raise RuntimeError(f"bare loop {core} was killed before it could say why. Was there enough memory?") from error
    if isinstance(told, str):
        raise RuntimeError(f"bare loop {core} has ended: {told}")
    return told


def _serve(connection: Connection, env_id: str, env_args: tuple[str, ...], seeds: range) -> None:
    """Play, and tell what went wrong."""
    try:
        _play(connection, env_id, env_args, seeds)
    except Exception as error:
        with contextlib.suppress(ConnectionError):
            connection.send(f"{type(error).__name__}: {error}")


def _play(connection: Connection, env_id: str, env_args: tuple[str, ...], seeds: range) -> None:
    """Play for as long as is asked, again and again, until nobody asks any more."""
    import gymnasium

    import clusterenv  # noqa: F401 - it registers its own environments
    from clusterenv.learners.common.env_args import parse_env_args

    envs = [gymnasium.make(env_id, disable_env_checker=True, **parse_env_args(env_args)) for _ in seeds]
    for seed, env in zip(seeds, envs, strict=True):
        env.reset(seed=seed)
        env.action_space.seed(seed)
    actions = [[env.action_space.sample() for env in envs] for _ in range(64)]
    connection.send(0.0)
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
