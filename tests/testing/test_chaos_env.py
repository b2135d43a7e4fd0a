"""Environments that misbehave on a plan: each fault does what its name says, and the cluster goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

import clusterenv
from clusterenv.errors import ConfigError
from clusterenv.testing import Chaos, ChaosEnv, ChaosError
from clusterenv.testing import chaos_env as subject

CHAOS, CRASHING = "clusterenv.testing:Chaos-v0", "clusterenv.testing:CrashingCartPole-v0"
LIMIT_S = 60.0


def made(env_id: str = "CartPole-v1", **chaos: Any) -> ChaosEnv:
    return ChaosEnv(gymnasium.make(env_id, disable_env_checker=True), Chaos(**chaos))


def fate(env: ChaosEnv, seed: int, steps: int) -> list[int]:
    """The steps at which it raises."""
    env.reset(seed=seed)
    raised = []
    for step in range(steps):
        try:
            _, _, terminated, truncated, _ = env.step(0)
            if terminated or truncated:
                env.reset()
        except ChaosError:
            raised.append(step)
    return raised


def test_without_a_plan_nothing_happens() -> None:
    assert fate(made(), seed=1, steps=200) == []


def test_a_fault_at_a_step_of_its_life() -> None:
    env = made(at={"raise": [3, 12]})
    assert fate(env, seed=1, steps=20) == [2, 11]
    assert env.life == 20


def test_chances_are_kept_and_follow_the_seeds() -> None:
    raised = fate(made(chances={"raise": 0.1}), seed=1, steps=2000)
    assert 140 < len(raised) < 260
    assert fate(made(chances={"raise": 0.1}), seed=1, steps=2000) == raised
    assert fate(made(chances={"raise": 0.1}), seed=2, steps=2000) != raised
    assert fate(made(chances={"raise": 0.1}, seed=5), seed=1, steps=2000) != raised


def test_resets_that_fail() -> None:
    env = made(reset_chances={"raise": 1.0})
    with pytest.raises(ChaosError, match="planned, in a reset"):
        env.reset(seed=1)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("fault", "found"), [("nan", (4,)), ("shape", (5,)), ("dtype", (4,))])
def test_nonsense_in_place_of_an_observation(fault: str, found: tuple[int, ...], nested: bool) -> None:
    env = made(at={fault: [1]})
    if nested:
        inner = gymnasium.wrappers.TransformObservation(
            env.env, lambda obs: {"a": (obs,)}, gymnasium.spaces.Dict({"a": gymnasium.spaces.Tuple([])})
        )
        env = ChaosEnv(inner, env.chaos)
    env.reset(seed=1)
    observation = env.step(0)[0]
    observation = observation["a"][0] if nested else observation
    assert observation.shape == found
    assert np.isnan(observation).all() if fault == "nan" else True
    assert (observation.dtype.kind == "U") == (fault == "dtype")


def test_whole_numbers_become_nan_too() -> None:
    env = ChaosEnv(gymnasium.make("FrozenLake-v1"), Chaos(at={"nan": [1]}))
    env.reset(seed=1)
    assert np.isnan(env.step(0)[0])


def test_nonsense_in_place_of_a_reward() -> None:
    env = made(at={"reward": [1]})
    env.reset(seed=1)
    assert env.step(0)[1] == "nonsense"


def test_sleeps_and_hangs_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    env = made(at={"sleep": [1], "hang": [2]}, sleep_s=0.5, hang_s=7.0)
    env.reset(seed=1)
    for _ in range(3):
        env.step(0)
    assert slept == [0.5, 7.0]


def test_leaks_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    leaked: list[bytearray] = []
    monkeypatch.setattr(subject, "_leaked", leaked)
    env = made(chances={"leak": 1.0}, leak_mb=0.5, leak_limit_mb=1.1)
    env.reset(seed=1)
    for _ in range(4):
        env.step(0)
    assert [len(piece) for piece in leaked] == [2**19, 2**19]


@pytest.mark.parametrize(("fault", "code"), [("exit", 3), ("segfault", -signal.SIGSEGV), ("kill", -signal.SIGKILL)])
def test_ends_of_the_process(fault: str, code: int) -> None:
    program = f"import gymnasium; env = gymnasium.make({CHAOS!r}, at={{{fault!r}: [1]}}); env.reset(); env.step(0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("cluster", ["local:2", "tcp:nodes=2,workers=1"])
def test_a_cluster_goes_on(cluster: str) -> None:
    """One slot raises, the other ends its worker: both come back truncated, and go on."""
    slots: list[dict[str, Any]] = [{"at": {"raise": [20]}}, {"at": {"exit": [20]}}]
    with clusterenv.make_vec(CHAOS, 2, cluster=cluster, env_id="Pendulum-v1", slot_kwargs=slots) as envs:
        envs.reset(seed=1)
        for _ in range(19):
            assert not envs.step(np.zeros((2, 1)))[3].any()
        _, _, _, truncated, infos = envs.step(np.zeros((2, 1)))
        assert truncated.all()
        assert infos["worker_lost"].all()
        assert infos["env_error"][0] == "ChaosError: planned, at step 20 of this environment"
        for _ in range(19):  # one of them is a reset
            assert not envs.step(np.zeros((2, 1)))[3].any()


@pytest.mark.parametrize("fault", ["shape", "dtype", "reward"])
def test_nonsense_costs_the_slot_its_episode(fault: str) -> None:
    with clusterenv.make_vec(CHAOS, 2, cluster="inproc", slot_kwargs=[{"at": {fault: [2]}}, {}]) as envs:
        envs.reset(seed=1)
        envs.step([0, 0])
        _, _, _, truncated, infos = envs.step([0, 0])
        assert truncated.tolist() == [True, False]
        assert infos["worker_lost"].tolist() == [True, False]


def test_the_crashing_cart_pole() -> None:
    env = gymnasium.make(CRASHING).unwrapped
    wrapper: Any = gymnasium.make(CRASHING)
    while not isinstance(wrapper, ChaosEnv):
        wrapper = wrapper.env
    assert wrapper.chaos.chances == {"raise": 0.005, "sleep": 0.0005}
    assert env.observation_space.shape == (4,)
    assert wrapper.spec is not None
    assert len(fate(wrapper, seed=3, steps=4000)) > 8


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"chances": {"rise": 0.1}}, "unknown fault in chances: 'rise'. Did you mean 'raise'"),
        ({"chances": {"raise": -0.1}}, r"chances\['raise'\]=-0.1 must be a chance from 0 to 1"),
        ({"chances": {"raise": 0.6, "exit": 0.6}}, "add up to more than 1"),
        ({"reset_chances": {"raise": "often"}}, r"reset_chances\['raise'\]='often' must be a chance"),
        ({"at": {"raise": [0]}}, r"at\['raise'\] has 0; steps are whole numbers from 1"),
        ({"at": {"raise": [3], "exit": [3]}}, "two faults for step 3: 'raise' and 'exit'"),
        ({"at": {"jump": [3]}}, "unknown fault in at: 'jump'"),
        ({"hang_s": None}, "hang_s=None must be a positive, finite number"),
        ({"sleep_s": float("inf")}, "sleep_s=inf must be a positive, finite number"),
        ({"seed": -1}, "seed=-1 must be a whole number"),
        ({"sleeps": 3}, "unknown field of Chaos: 'sleeps'. Did you mean 'sleep_s'"),
    ],
)
def test_plans_that_are_none(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        subject.make(**wrong)
