"""make_vec: the arguments of gymnasium.make_vec, and what it answers; from_blocks; gymnasium.make_vec itself."""

from __future__ import annotations

import contextlib
import copy
import functools
import multiprocessing
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec, VectorizeMode
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit, TransformReward

import clusterenv
from clusterenv import ClusterEnv, Inproc, Local, OnLoss, Timeouts, make_vec
from clusterenv.env.make import EnvFactory
from clusterenv.errors import ClusterEnvError, ConfigError, EnvError
from tests.env.kit import WalkEnv, assert_same, trajectory
from tests.zoo import CountingEnv, counting

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

WALK = "tests/Walk-v0"
VECTOR_ONLY = "tests/VectorOnly-v0"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Two ids of our own."""
    gymnasium.register(WALK, entry_point="tests.env.kit:WalkEnv", max_episode_steps=7, kwargs={"size": 2})
    gymnasium.register(VECTOR_ONLY, vector_entry_point=_counting_block)  # type: ignore[arg-type]
    yield
    del gymnasium.registry[WALK], gymnasium.registry[VECTOR_ONLY]


def _counting_block(num_envs: int, length: int = 3) -> SyncVectorEnv:
    return SyncVectorEnv(counting(num_envs, length=length, infos=True))


def _twice(reward: Any) -> Any:
    return 2 * reward


def _short(env: Any) -> Any:
    return TimeLimit(env, 3)


# As gymnasium.make_vec.


def test_the_same_answers_as_gymnasium(cluster: str) -> None:
    theirs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    with make_vec("CartPole-v1", num_envs=3, cluster=cluster) as ours:
        assert ours.observation_space == theirs.observation_space
        assert ours.action_space == theirs.action_space
        assert ours.metadata == theirs.metadata
        assert ours.render_mode is theirs.render_mode is None
        assert_same(trajectory(ours, 60, seed=2), trajectory(theirs, 60, seed=2))
    theirs.close()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_envs": 3},
        {"num_envs": 2, "vector_kwargs": {"autoreset_mode": "SameStep"}},
        {"num_envs": 2, "wrappers": (_short,)},
        {"num_envs": 2, "size": 4, "render_mode": "rgb_array"},
    ],
    ids=["plain", "num_envs", "vector_kwargs", "wrappers", "kwargs"],
)
def test_the_spec_is_that_of_gymnasium(arguments: dict[str, Any]) -> None:
    with make_vec(WALK, cluster="inproc", **arguments) as ours:
        theirs = gymnasium.make_vec(WALK, vectorization_mode="sync", **arguments)
        assert ours.spec is not None
        assert ours.spec.id == WALK
        assert ours.spec == theirs.spec
        assert repr(ours) == repr(theirs).replace("SyncVectorEnv", "ClusterEnv")
        theirs.close()


def test_the_spec_makes_the_same_batch_again() -> None:
    with make_vec(WALK, num_envs=2, vector_kwargs={"autoreset_mode": "SameStep"}, size=5, cluster="inproc") as first:
        before, expected = copy.deepcopy(first.spec), trajectory(first, 20, seed=1)
        assert first.spec is not None
        with make_vec(first.spec, cluster="inproc") as second:
            assert second.num_envs == 2
            assert second.autoreset_mode is AutoresetMode.SAME_STEP
            assert second.spec == before
            assert_same(trajectory(second, 20, seed=1), expected)


def test_a_spec_is_left_alone() -> None:
    spec = gymnasium.spec(WALK)
    before = copy.deepcopy(spec)
    with make_vec(spec, num_envs=2, size=5, cluster="inproc") as envs:
        assert envs.single_observation_space.shape == (5,)
    assert spec == before


def test_kwargs_reach_the_environments(cluster: str) -> None:
    with make_vec(WALK, num_envs=2, size=6, render_mode="rgb_array", cluster=cluster) as envs:
        assert envs.single_observation_space.shape == (6,)
        assert envs.render_mode == "rgb_array"
        assert envs.get_attr("size") == (6, 6)


def test_the_kwargs_of_the_spec_are_the_default(cluster: str) -> None:
    with make_vec(WALK, num_envs=2, cluster=cluster) as envs:
        assert envs.get_attr("size") == (2, 2)


def test_the_wrappers_of_gymnasium_are_there(cluster: str) -> None:
    with make_vec(WALK, num_envs=2, cluster=cluster) as envs:
        for text in envs.call("__str__"):
            assert text.startswith("<TimeLimit<OrderEnforcing")
        envs.reset(seed=0)
        truncated = [envs.step(np.zeros((2, 2), np.float32))[3].any() for _ in range(40)]
        assert any(truncated)


def test_wrappers_are_applied_in_order(cluster: str) -> None:
    # Whether the limit is inside or outside decides what `get_wrapper_attr` finds first.
    wrappers: list[Any] = [lambda env: TimeLimit(env, 4), lambda env: TransformReward(TimeLimit(env, 3), _twice)]
    with make_vec("MountainCar-v0", num_envs=2, wrappers=wrappers, cluster=cluster) as envs:
        theirs = gymnasium.make_vec("MountainCar-v0", num_envs=2, wrappers=wrappers, vectorization_mode="sync")
        assert envs.single_observation_space == theirs.single_observation_space
        assert_same(trajectory(envs, 12, seed=3), trajectory(theirs, 12, seed=3))
        assert envs.get_attr("_max_episode_steps") == (3, 3)
        theirs.close()


def test_vector_kwargs_reach_the_batch() -> None:
    chosen = {"autoreset_mode": "Disabled", "copy": False, "observation_mode": "different"}
    with make_vec(WALK, num_envs=2, vector_kwargs=chosen, cluster="inproc") as envs:
        assert envs.autoreset_mode is AutoresetMode.DISABLED
        assert envs.copy is False
        assert envs.observation_mode == "different"
    assert chosen == {"autoreset_mode": "Disabled", "copy": False, "observation_mode": "different"}


def test_vector_kwargs_of_async_vector_env_are_taken() -> None:
    chosen = {"shared_memory": False, "context": "spawn", "daemon": False, "worker": None, "max_concurrency": 1}
    with make_vec(WALK, num_envs=2, vector_kwargs=chosen, cluster="inproc:2") as envs:
        assert len(envs.worker_pids()) == 1, "max_concurrency caps the workers"


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2"])
def test_a_wrong_max_concurrency_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="max_concurrency"):
        make_vec(WALK, num_envs=2, vector_kwargs={"max_concurrency": bad}, cluster="inproc")


def test_one_environment_is_the_default(cluster: str) -> None:
    with make_vec(WALK, cluster=cluster) as envs:
        assert envs.num_envs == 1
        assert envs.reset(seed=0)[0].shape == (1, 2)


def test_more_workers_than_environments() -> None:
    with make_vec(WALK, num_envs=2, cluster="local:3") as envs:
        assert len(envs.worker_pids()) == 2
        assert len(set(envs.worker_pids())) == 2


def test_a_typed_cluster() -> None:
    with make_vec(WALK, num_envs=2, cluster=Inproc(workers=2)) as envs:
        assert envs.cluster == Inproc(workers=2)
    with make_vec(WALK, num_envs=2, cluster=Local(workers=2, affinity="off")) as envs:
        assert envs.cluster == Local(workers=2, affinity="off")


def test_on_loss_and_timeouts_reach_the_batch() -> None:
    with make_vec(
        "tests/Walk-v0", num_envs=1, cluster="inproc", on_loss=OnLoss.RAISE, timeouts=Timeouts(step_s=1)
    ) as envs:
        envs.reset(seed=0)
        envs.set_attr("place", "nowhere")
        with pytest.raises(EnvError):
            envs.step(np.zeros((1, 2), np.float32))


# What gymnasium.make_vec has not.


def test_kwargs_by_slot(cluster: str) -> None:
    by_slot = [{"g": 1.0}, {}, {"g": 3.0}]
    with make_vec("Pendulum-v1", num_envs=3, cluster=cluster, slot_kwargs=by_slot, g=2.0) as envs:
        assert envs.get_attr("g") == (1.0, 2.0, 3.0)
    with pytest.raises(ConfigError, match="2 entries for num_envs=3"):
        make_vec("Pendulum-v1", num_envs=3, cluster=cluster, slot_kwargs=by_slot[:2])


# Ids.


def test_an_id_with_a_module(cluster: str) -> None:
    with make_vec("gymnasium.envs:CartPole-v1", num_envs=2, cluster=cluster) as envs:
        assert envs.spec is not None
        assert envs.spec.id == "CartPole-v1"


def test_an_environment_that_only_this_process_has_registered(cluster: str) -> None:
    gymnasium.register("tests/Here-v0", entry_point=_make_walk)  # type: ignore[arg-type]
    try:
        with make_vec("tests/Here-v0", num_envs=2, cluster=cluster) as envs:
            assert envs.reset(seed=1)[0].shape == (2, 3)
    finally:
        del gymnasium.registry["tests/Here-v0"]


def _make_walk() -> WalkEnv:
    return WalkEnv()


def test_a_spec_that_is_not_registered(cluster: str) -> None:
    spec = EnvSpec("tests/Never-v0", entry_point=_make_walk)  # type: ignore[arg-type]
    with make_vec(spec, num_envs=2, cluster=cluster) as envs:
        assert envs.reset(seed=1)[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("CartPole-v9", "CartPole-v1"),
        ("CartPol-v1", "Did you mean 'CartPole-v1'"),
        ("no_such_module:Env-v0", "no_such_module"),
        ("", "id"),
        (None, "must be an environment id"),
        (3, "must be an environment id"),
        (CountingEnv, "must be an environment id"),
        ("x" * 1000, "1000 characters"),
    ],
)
def test_an_unknown_id_is_refused(id: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_vec(id, num_envs=2, cluster="inproc")


@pytest.mark.parametrize("bad", [0, -3, 1.5, "2", True, None, 10**9])
def test_a_wrong_number_of_environments_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="num_envs"):
        make_vec(WALK, num_envs=bad, cluster="inproc")


@pytest.mark.parametrize("count", [np.int64(2), np.uint8(2)])
def test_a_numpy_number_of_environments(count: Any) -> None:
    with make_vec(WALK, num_envs=count, cluster="inproc") as envs:
        assert envs.num_envs == 2
        assert type(envs.num_envs) is int


def test_arguments_that_the_environment_does_not_know(cluster: str) -> None:
    with pytest.raises(TypeError, match="colour") as caught:
        make_vec(WALK, num_envs=2, cluster=cluster, colour="red")
    assert isinstance(caught.value, EnvError)


def test_arguments_that_the_batch_does_not_know() -> None:
    with pytest.raises(TypeError, match="autorest_mode"):
        make_vec(WALK, num_envs=2, cluster="inproc", vector_kwargs={"autorest_mode": "SameStep"})


@pytest.mark.parametrize("wrong", [["copy"], "copy", 3])
def test_arguments_of_the_batch_that_are_no_dictionary(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"vector_kwargs=.* must be a dictionary"):
        make_vec(WALK, num_envs=2, cluster="inproc", vector_kwargs=wrong)


# Vectorised environments.


@pytest.mark.parametrize("mode", ["vector_entry_point", VectorizeMode.VECTOR_ENTRY_POINT])
def test_a_vector_entry_point(cluster: str, mode: Any) -> None:
    with make_vec(VECTOR_ONLY, 4, mode, cluster=cluster, length=2) as envs:
        assert envs.num_envs == 4
        assert envs.autoreset_mode is AutoresetMode.NEXT_STEP
        assert envs.spec is not None
        assert envs.spec.kwargs == {"length": 2, "num_envs": 4, "vectorization_mode": "vector_entry_point"}
        observations, infos = envs.reset(seed=3)
        np.testing.assert_array_equal(observations[:, 1], [0, 0, 0, 0])
        np.testing.assert_array_equal(infos["_started"], [True] * 4)
        seen = [envs.step([0, 1, 2, 1]) for _ in range(3)]
        np.testing.assert_array_equal([row[0][0, 1] for row in seen], [1, 2, 0])
        np.testing.assert_array_equal([row[2].all() for row in seen], [False, True, False])
        np.testing.assert_array_equal(seen[0][1], [0, 1, 2, 1])
        np.testing.assert_array_equal(seen[0][4]["action"], [0, 1, 2, 1])


def test_cartpole_by_its_vector_entry_point(cluster: str) -> None:
    with make_vec("CartPole-v1", 4, "vector_entry_point", cluster=cluster) as envs:
        envs.reset()
        lengths = np.zeros(4)
        for _ in range(60):
            lengths += 1
            _, rewards, terminated, truncated, _ = envs.step([1, 1, 1, 1])
            assert rewards.shape == (4,)
            assert not truncated.any()
            if terminated.any():
                break
        assert terminated.any()


def test_a_seed_reaches_the_vectorised_environments_of_gymnasium(cluster: str) -> None:
    with ClusterEnv.from_blocks(CartPoleVectorEnv, 4, cluster=cluster) as envs:
        first, _ = envs.reset(seed=1)
        again, _ = envs.reset(seed=1)
        other, _ = envs.reset(seed=2)
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first, other)
        assert len(np.unique(first)) == first.size, "no two slots are alike"


def test_a_mask_reaches_only_its_slots_or_is_refused(cluster: str) -> None:
    with ClusterEnv.from_blocks(CartPoleVectorEnv, 4, cluster=cluster) as envs:
        envs.reset()
        before, *_ = envs.step([0, 1, 0, 1])
        try:  # CartPoleVectorEnv itself knows no mask and resets all its rows
            after, _ = envs.reset(options={"reset_mask": np.array([True, False, False, False])})
        except ClusterEnvError:
            return
        np.testing.assert_array_equal(after[1:], before[1:])


def test_blocks_of_a_vector_environment(cluster: str) -> None:
    with ClusterEnv.from_blocks(_counting_block, 5, cluster=cluster) as envs:
        theirs = _counting_block(5)
        assert envs.observation_space == theirs.observation_space
        envs.reset(seed=[5, 6, 7, 8, 9])
        assert envs.np_random_seed == (5, 6, 7, 8, 9)
        envs.step([0, 1, 2, 0, 1])
        observations, infos = envs.reset(seed=50, options={"reset_mask": np.array([False, True, False, False, True])})
        np.testing.assert_array_equal(observations[:, 1], [1, 0, 1, 1, 0])
        np.testing.assert_array_equal(infos["_started"], [False, True, False, False, True])
        assert envs.np_random_seed == (5, 51, 7, 8, 54)
        assert envs.call("double", 2, indices=[3, 0]) == (4, 4)


def test_blocks_of_gymnasium_render_and_tell_their_attributes(cluster: str) -> None:
    factory = functools.partial(CartPoleVectorEnv, render_mode="rgb_array")
    with ClusterEnv.from_blocks(factory, 4, cluster=cluster) as envs:
        envs.reset(seed=1)
        frames = envs.render()
        assert frames is not None
        assert [frame.shape for frame in frames] == [(400, 600, 3)] * 4
        assert len(envs.np_random_seed) == 4
        assert envs.get_attr("gravity") == (9.8,) * 4
        envs.set_attr("gravity", 1.6)
        assert envs.get_attr("gravity") == (1.6,) * 4
        with pytest.raises(AttributeError, match="CartPoleVectorEnv has no attribute 'gravty'"):
            envs.get_attr("gravty")


def test_what_a_vector_entry_point_cannot_take() -> None:
    given: dict[str, Any] = {"vector_kwargs": {"copy": False}, "wrappers": [_short], "slot_kwargs": [{}] * 2}
    for name, value in given.items():
        with pytest.raises(ConfigError, match=name):
            make_vec(VECTOR_ONLY, 2, "vector_entry_point", cluster="inproc", **{name: value})
    with pytest.raises(ConfigError, match="no vector_entry_point"):
        make_vec(WALK, 2, "vector_entry_point", cluster="inproc")
    with pytest.raises(ConfigError, match="no entry_point"):
        make_vec(VECTOR_ONLY, 2, cluster="inproc")


@pytest.mark.parametrize("mode", ["async", VectorizeMode.ASYNC, "cluster", 3])
def test_other_vectorization_modes_are_refused(mode: Any) -> None:
    with pytest.raises(ConfigError, match="vectorization_mode"):
        make_vec(WALK, 2, mode, cluster="inproc")


def test_a_factory_of_blocks_must_be_callable() -> None:
    with pytest.raises(TypeError, match="factory="):
        ClusterEnv.from_blocks("CartPole-v1", 4, cluster="inproc")  # type: ignore[arg-type]


# The constructor.


def test_factories_must_be_a_list_of_functions() -> None:
    bad: list[tuple[Any, type[Exception]]] = [
        ([], ValueError),
        (CountingEnv, TypeError),
        (3, TypeError),
        ([CountingEnv()], TypeError),
        ([CountingEnv, None], TypeError),
    ]
    for factories, kind in bad:
        with pytest.raises(kind, match="env_fns"):
            ClusterEnv(factories, cluster="inproc")


def test_factories_may_be_any_iterable() -> None:
    with ClusterEnv(iter(counting(3)), cluster="inproc") as envs:  # type: ignore[arg-type]
        assert envs.num_envs == 3


@pytest.mark.parametrize("cluster", ["inproc:2", "local:2"])
def test_different_environments_in_one_batch(cluster: str) -> None:
    """Each by its id and its own arguments and wrappers, as `make_vec` would make it."""
    factories = [
        EnvFactory.of("CartPole-v1"),
        EnvFactory.of("CartPole-v1", check=False, sutton_barto_reward=True),
        EnvFactory.of("CartPole-v1", [_capped], check=False),
    ]
    alone = [make_vec("CartPole-v1", 1, cluster="inproc", sutton_barto_reward=other) for other in (False, True)]
    with ClusterEnv(factories, cluster=cluster) as envs:
        first, _ = envs.reset(seed=[4, 4, 4])
        for _ in range(2):
            told = envs.step(np.array([1, 1, 1]))
    for slot, single in enumerate(alone):
        assert np.array_equal(single.reset(seed=4)[0][0], first[slot])
        for _ in range(2):
            expected = single.step(np.array([1]))
        assert np.array_equal(expected[0][0], told[0][slot])
        assert expected[1][0] == told[1][slot]
        single.close()
    assert told[3].tolist() == [False, False, True]
    module, recipe = EnvFactory.of("gymnasium:CartPole-v1", sutton_barto_reward=True).recipe()
    assert (module, recipe) == ("gymnasium", ["CartPole-v1", {"sutton_barto_reward": True}, []])


def _capped(env: Any) -> Any:
    return TimeLimit(env, 2)


def test_an_environment_that_is_only_vectorised_is_no_single_one() -> None:
    with pytest.raises(ConfigError, match="VectorOnly-v0 has no entry_point"):
        EnvFactory.of(VECTOR_ONLY)


def test_a_worker_of_ones_own_is_refused() -> None:
    with pytest.raises(ConfigError, match="worker="):
        ClusterEnv(counting(1), cluster="inproc", worker=print)  # type: ignore[arg-type]


def test_a_factory_that_cannot_travel_is_told() -> None:
    lock = threading.Lock()

    def factory() -> Any:
        with lock:
            return CountingEnv()

    with pytest.raises(clusterenv.ResultError, match=r"lock.*inproc"):
        ClusterEnv([factory], cluster="local:1")


class _Telling(CountingEnv):
    def __init__(self, told: Any) -> None:
        super().__init__()
        self.told = told

    def step(self, action: Any) -> Any:
        self.told.append(int(action))
        return super().step(action)


def test_factories_may_hold_things_of_a_manager(cluster: str) -> None:
    with multiprocessing.Manager() as manager:
        told = manager.list()
        with ClusterEnv([lambda: _Telling(told)] * 2, cluster=cluster) as envs:
            envs.reset()
            envs.step([1, 2])
        assert sorted(told) == [1, 2]


def test_the_batch_is_a_vector_env_of_gymnasium_directly() -> None:
    assert ClusterEnv.__bases__[0] is gymnasium.vector.VectorEnv


# Through gymnasium.make_vec.


@pytest.mark.parametrize("order", ["import gymnasium, clusterenv", "import clusterenv, gymnasium", "import gymnasium"])
def test_gymnasium_makes_it(order: str) -> None:
    script = f"""
{order}
envs = gymnasium.make_vec(
    "clusterenv:clusterenv/Remote-v0", num_envs=3, env_id="CartPole-v1", cluster="local:2", sutton_barto_reward=True
)
print(type(envs).__name__, envs.num_envs, envs.get_attr("_sutton_barto_reward"), envs.reset(seed=1)[0].shape)
print(envs.spec.id, envs.spec.kwargs["env_id"], type(envs.metadata["autoreset_mode"]).__name__)
envs.close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines() == [
        "ClusterEnv 3 (True, True, True) (3, 4)",
        "clusterenv/Remote-v0 CartPole-v1 AutoresetMode",
    ], done.stderr


def remote(num_envs: int, **kwargs: Any) -> ClusterEnv:
    """A batch of poles, made by Gymnasium."""
    envs = gymnasium.make_vec("clusterenv:clusterenv/Remote-v0", num_envs, env_id="CartPole-v1", **kwargs)
    assert isinstance(envs, ClusterEnv)
    return envs


@pytest.mark.parametrize("mode", ["SameStep", "SAME_STEP", AutoresetMode.SAME_STEP])
def test_gymnasium_makes_it_with_an_autoreset_mode(mode: Any) -> None:
    with remote(2, cluster="inproc", autoreset_mode=mode) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        envs.reset(seed=1)
        answers = [envs.step(np.ones(2, dtype=np.int64)) for _ in range(12)]
    ended = next(answer for answer in answers if answer[2].any())
    assert "final_obs" in ended[4]


def test_gymnasium_names_the_modes_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'SameStp'\. Did you mean 'SameStep'"):
        remote(2, cluster="inproc", autoreset_mode="SameStp")


def test_gymnasium_hands_over_the_arguments_of_the_batch() -> None:
    wrapped = [gymnasium.wrappers.TimeAwareObservation]
    batch = {"copy": False, "observation_mode": "different", "max_concurrency": 2}
    with remote(4, cluster="inproc:4", env_wrappers=wrapped, **batch) as envs:
        assert (envs.copy, envs.observation_mode, len(envs.worker_pids())) == (False, "different", 2)
        assert envs.single_observation_space.shape == (5,)


def test_gymnasium_makes_it_of_vectorised_environments() -> None:
    with remote(4, cluster="inproc:2", env_vectorization_mode="vector_entry_point") as envs:
        assert envs._whole_blocks


def test_gymnasium_makes_it_again_from_its_spec() -> None:
    with remote(2, cluster="inproc", autoreset_mode="Disabled") as envs:
        spec = envs.spec
    assert spec is not None
    with contextlib.closing(gymnasium.make_vec(spec)) as again:
        assert (again.num_envs, again.metadata["autoreset_mode"]) == (2, AutoresetMode.DISABLED)


def test_a_script_needs_no_main_guard(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import clusterenv, gymnasium\n"
        "print('once')\n"
        "class Mine(gymnasium.Wrapper):\n"
        "    def double(self): return 2\n"
        "envs = clusterenv.make_vec('CartPole-v1', num_envs=2, wrappers=[Mine, lambda env: env], cluster='local:2')\n"
        "print(envs.call('double'))\n"
        "envs.close()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["once", "(2, 2)"], done.stderr


@pytest.mark.parametrize("module", ["no_such_module", "no_such_package.envs"])
def test_a_module_that_is_not_found_is_to_be_installed_or_named(module: str) -> None:
    with pytest.raises(ConfigError, match=r"Install it, or name its folder in PYTHONPATH \(`PYTHONPATH=\. clusterenv"):
        make_vec(f"{module}:My-v0", num_envs=2, cluster="inproc")


def test_a_module_that_lacks_another_needs_no_path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_that_lacks_another.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="No module named 'no_such_module'") as caught:
        make_vec("module_that_lacks_another:My-v0", num_envs=2, cluster="inproc")
    assert "PYTHONPATH" not in str(caught.value)


def test_an_unknown_environment_may_be_one_that_a_module_registers() -> None:
    with pytest.raises(ConfigError, match="name the module that registers it: 'my_module:Xyzzy-v0'"):
        make_vec("Xyzzy-v0", num_envs=2, cluster="inproc")
