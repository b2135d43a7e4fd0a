"""What `clusterenv bench` measures: environment, policy and cluster, each for about a second."""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from clusterenv import spaces
from clusterenv.env.make import make_vec
from clusterenv.errors import EnvError
from clusterenv.learners.common.acting import HeadActor
from clusterenv.learners.common.graphed import fastest
from clusterenv.learners.common.networks import make_network
from clusterenv.learners.common.placement import Measurements
from clusterenv.learners.common.tracking import full_bytes
from clusterenv.policy.adapters import as_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv.cli.bench import BenchArgs
    from clusterenv.env.vector import ClusterEnv

_LEAST, _MOST = 3, 2000  # repetitions
_LINK_BYTES = 1_000_000


def seconds_of(act: Callable[[], Any], limit_s: float, *, rest: Callable[[], Any] | None = None) -> float:
    """The median time of a call, as often as fits into the limit. `rest` runs between the calls, not timed."""
    act()
    if rest is not None:
        rest()
    taken: list[float] = []
    end = time.perf_counter() + limit_s
    while len(taken) < _LEAST or (len(taken) < _MOST and time.perf_counter() < end):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
        if rest is not None:
            rest()
    return float(np.median(taken))


def step_seconds(env: gymnasium.Env[Any, Any], limit_s: float) -> float:
    """The mean time of a step of one environment in this process, resets included.

    Raises:
        EnvError: the environment raised.
    """
    env.action_space.seed(0)
    doing, seed, age = "reset", 0, 0  # what the environment does, and how far it has come: for the error
    steps = 0
    try:
        env.reset(seed=seed)
        began = time.perf_counter()
        while steps < _LEAST or time.perf_counter() - began < limit_s:
            doing = "step"
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            steps, age = steps + 1, age + 1
            if terminated or truncated:
                doing, age = "reset", 0
                env.reset()
        return (time.perf_counter() - began) / steps
    except Exception as error:  # whatever an environment can raise
        told = traceback.format_exc()
        raise EnvError.of(error, slot=0, doing=doing, seed=seed, step=age, remote_traceback=told) from error


def measure(args: BenchArgs, say: Callable[[str], None]) -> Measurements:
    """Measure everything; `say` is told what is measured next."""
    limit_s = args.seconds
    say(f"the environment {args.env_id}, in this process")
    # First: what is wrong with an environment is told best here.
    with make_vec(args.env_id, 1, cluster="inproc", **args.env_kwargs()) as one:
        observation_space, action_space = one.single_observation_space, one.single_action_space
    with contextlib.closing(gymnasium.make(args.env_id, **args.env_kwargs())) as env:
        step_s = step_seconds(env, 2 * limit_s)
    torch.manual_seed(0)
    network = make_network(observation_space, action_space, body=args.policy, lstm=args.lstm).policy_only()
    say(f"the policy ({args.policy}{f', LSTM of {args.lstm}' if args.lstm else ''}) as a worker runs it, on one core")
    worker_s = _worker_seconds(network, observation_space, action_space, args)
    say(f"the policy on the head, on {args.device}")
    head_s = _head_seconds(network, observation_space, args)
    say(f"environments and messages on {args.cluster}")
    slots, limits = args.slots(), args.timeouts
    with make_vec(args.env_id, slots, cluster=args.cluster, timeouts=limits, **args.env_kwargs()) as envs:
        workers = len(envs.worker_pids())  # a cluster may have more than have got a slot, or not know how many
        envs.reset(seed=0)
        exchange_s = _exchange_seconds(envs, args.head_rows(), step_s, limit_s)
        round_trip_s = max(0.0, _round_trip_seconds(envs, limit_s) - step_s)
        rate = _stepping_rate(envs, 2 * limit_s)
        link = None if args.here else _link_rate(envs, limit_s)
    leaves = spaces.leaves_of(observation_space) or []
    row = int(sum(np.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves))
    weights = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    return Measurements(
        workers=workers,
        step_s=step_s,
        worker_s=worker_s,
        head_s=head_s,
        exchange_s=exchange_s,
        stepping_rate=rate,
        round_trip_s=round_trip_s,
        observation_bytes=row,
        weights_bytes=full_bytes(weights, "bf16-delta"),
        link_bytes_s=link,
        cores=args.cores(),
    )


def _worker_seconds(network: Any, observation_space: Any, action_space: Any, args: BenchArgs) -> dict[int, float]:
    policy = as_policy(network, observation_space, action_space)
    runtime = policy.build().make()
    runtime.load(policy.weights())
    limit_s = args.seconds / len(args.worker_rows())
    told = {}
    for rows in args.worker_rows():
        leaves = [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in spaces.leaves_of(observation_space) or []]
        state = tuple(np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in policy.state)
        told[rows] = seconds_of(functools.partial(runtime, leaves, state), limit_s)
    return told


def _head_seconds(network: Any, observation_space: Any, args: BenchArgs) -> dict[int, float]:
    sizes = args.head_rows()
    torch.set_num_threads(args.torch_threads)
    actor = HeadActor(network, observation_space, slots=max(sizes), device=args.device)
    told = {}
    for rows in sizes:
        run, slots = fastest(actor, rows, "auto"), np.arange(rows)
        act = functools.partial(run, slots, actor.blank(rows), first=slots < 0, at=slots * 0)
        told[rows] = seconds_of(act, args.seconds / len(sizes))
    return told


def _exchange_seconds(envs: ClusterEnv, sizes: list[int], step_s: float, limit_s: float) -> dict[int, float]:
    """What `send` and `recv` of so many slots take, between what was measured for one slot and for all of them."""
    one, all_of_them = (_exchange_of(envs, rows, step_s, limit_s / 2) for rows in (1, envs.num_envs))
    slope = max(0.0, all_of_them - one) / max(1, envs.num_envs - 1)
    return {rows: one + slope * (rows - 1) for rows in sizes}


def _exchange_of(envs: ClusterEnv, rows: int, step_s: float, limit_s: float) -> float:
    """What `send` and `recv` of this many slots take, when their results are there already."""
    slots, actions = np.arange(rows), _actions(envs, rows)
    rest_s = 1.5 * step_s * -(-rows // len(envs.worker_pids())) + 0.005
    envs.send(actions, slots)

    def both() -> None:
        envs.recv(rows)
        envs.send(actions, slots)

    told = seconds_of(both, limit_s, rest=functools.partial(time.sleep, rest_s))
    envs.recv(rows)
    return told


def _round_trip_seconds(envs: ClusterEnv, limit_s: float) -> float:
    slot, action = np.arange(1), _actions(envs, 1)

    def both() -> None:
        envs.send(action, slot)
        envs.recv()

    return seconds_of(both, limit_s)


def _stepping_rate(envs: ClusterEnv, limit_s: float) -> float:
    """Steps per second of all slots, half of which are under way while the others are asked."""
    half = max(1, envs.num_envs // 2)
    actions = _actions(envs, envs.num_envs)
    envs.send(actions)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < limit_s:
        slots = envs.recv(half, max_slots=half)[4]["env_id"]
        envs.send(actions[: len(slots)], slots)
        steps += len(slots)
    rate = steps / (time.perf_counter() - began)
    envs.recv(envs.num_envs)
    return rate


def _link_rate(envs: ClusterEnv, limit_s: float) -> float:
    """Bytes per second to one environment: what a megabyte takes longer than a byte."""
    small, large = (
        seconds_of(functools.partial(envs.set_attr, "_measured", [np.zeros(count, np.uint8)], [0]), limit_s / 2)
        for count in (1, _LINK_BYTES)
    )
    return _LINK_BYTES / max(1e-6, large - small)


def _actions(envs: ClusterEnv, rows: int) -> Any:
    space = envs.single_action_space
    space.seed(0)
    return np.stack([np.asarray(space.sample()) for _ in range(rows)])
