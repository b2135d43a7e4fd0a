"""as_sb3: what Stable-Baselines3 finds, against its own DummyVecEnv."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from clusterenv import ClusterEnv
from clusterenv.errors import ActionError, ConfigError, ConfigTypeError
from tests.env.kit import ReusingEnv, SpaceEnv, WalkEnv, assert_same
from tests.zoo import CountingEnv, counting, misbehave

vec_env = pytest.importorskip("stable_baselines3.common.vec_env", reason="needs stable-baselines3")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Make = Callable[..., ClusterEnv]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Networks this small gain nothing from threads, and the cores are shared."""
    torch = pytest.importorskip("torch", reason="needs torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Statistics(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Shares a part of its name with RecordEpisodeStatistics, and nothing else."""


class OurTimeLimit(TimeLimit):
    """A wrapper that is derived from another."""


class DiesOnce(CountingEnv):
    """Takes its worker with it in the first reset of slot 2, and leaves a note."""

    def __init__(self, slot: int, note: str) -> None:
        super().__init__(slot)
        self.note = pathlib.Path(note)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Die, or count."""
        if self.slot == 2 and not self.note.exists():
            self.note.touch()
            misbehave("exit")
        return super().reset(seed=seed, options=options)


def sb3(make: Make, factories: list[Any], **kwargs: Any) -> Any:
    """Our batch as Stable-Baselines3 sees it."""
    return make(factories, autoreset_mode="SameStep", **kwargs).as_sb3()


def limited(num_envs: int, length: int = 5, limit: int = 3) -> list[Any]:
    """Counting environments that a time limit cuts off in every slot but the first."""
    return [_limited(slot, length, limit if slot else length + 1) for slot in range(num_envs)]


def _limited(slot: int, length: int, limit: int) -> Callable[[], Any]:
    return lambda: TimeLimit(CountingEnv(slot, length, infos=True), limit)


def scripted(script: list[list[Any]]) -> list[Any]:
    """Environments of one script each: the info of a reset, and then (reward, terminated, truncated, info) per step."""
    return [_scripted(slot, script) for slot in range(len(script))]


def _scripted(slot: int, script: list[list[Any]]) -> Callable[[], Any]:
    def build() -> SpaceEnv:
        env = SpaceEnv(spaces.Box(0, 1, (2,)), slot=slot)
        env.reset(options={"script": script})
        return env

    return build


# The same answers.


def test_a_run_is_that_of_dummy_vec_env(make: Make) -> None:
    ours, theirs = sb3(make, [WalkEnv] * 3), vec_env.DummyVecEnv([WalkEnv] * 3)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.num_envs == theirs.num_envs
    for envs in (ours, theirs):
        envs.seed(4)
    assert_same(ours.reset(), theirs.reset())
    assert_same(ours.reset_infos, theirs.reset_infos)
    ours.action_space.seed(0)
    ends = 0
    for _ in range(60):
        actions = np.stack([ours.action_space.sample() for _ in range(3)])
        one, other = ours.step(actions), theirs.step(actions)
        assert_same(one, other)
        assert_same(ours.reset_infos, theirs.reset_infos)
        ends += int(one[2].sum())
    assert ends > 10


@pytest.mark.parametrize(
    "values",
    [
        (0, 0.75),
        (False, 7),
        (0.5, None),
        (3, None),
        (1, 2**70),
        (np.float32(1), 123456789.0),
        (np.array([1, 2]), np.array([3])),
        (np.zeros(2, np.uint8), np.ones((2, 2))),
        ("a", 1),
        ([1], (2, 3)),
        (5, {"a": 1}),
        ({"a": 1}, {"a": {"b": "c"}, "_a": 2}),
        ({}, {"x": None}),
    ],
    ids=lambda values: "-".join(type(value).__name__ for value in values),
)
def test_infos_are_those_of_the_environments(make: Make, values: tuple[Any, Any]) -> None:
    infos = [{"key": value, f"only_{slot}": value} for slot, value in enumerate(values)]
    script = [[info, (0.0, False, False, info), (0.0, slot == 0, slot == 1, info)] for slot, info in enumerate(infos)]
    ours, theirs = sb3(make, scripted(script)), vec_env.DummyVecEnv(scripted(script))
    for envs in (ours, theirs):
        envs.seed(1)
    assert_same(ours.reset(), theirs.reset())
    for _ in range(4):
        assert_same(ours.reset_infos, theirs.reset_infos)
        assert_same(ours.step(np.zeros(2, np.int64)), theirs.step(np.zeros(2, np.int64)))


def test_infos_stay_as_they_were(make: Make) -> None:
    envs = sb3(make, [ReusingEnv] * 2)
    envs.reset()
    first = envs.step(np.ones((2, 2)))[3]
    last = envs.step(np.ones((2, 2)))[3]
    envs.step(np.ones((2, 2)))
    assert [info["inner"] for info in first] == [{"step": 1}] * 2
    assert [info["inner"] for info in last] == [{"step": 2}] * 2
    assert envs.reset_infos == [{"inner": {"step": 0}}] * 2
    assert all("TimeLimit.truncated" not in info for info in envs.get_attr("info")), "ours, not the environment's"


def test_episodes_of_monitor(make: Make) -> None:
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    factories = [lambda: monitor.Monitor(CountingEnv(0, 2))] * 2
    episodes = []
    for envs in (sb3(make, factories), vec_env.DummyVecEnv(factories)):
        envs.reset()
        envs.step(np.array([1, 2]))
        episodes.append([info["episode"] for info in envs.step(np.array([1, 2]))[3]])
    for episode in (*episodes[0], *episodes[1]):
        assert isinstance(episode.pop("t"), float)
    assert_same(episodes[0], episodes[1])


def test_infos_of_the_reset_stay_out_of_the_infos_of_the_last_step(make: Make) -> None:
    envs = sb3(make, counting(2, length=2, infos=True))
    envs.reset()
    assert envs.reset_infos == [{"started": True}] * 2
    envs.step(np.array([1, 2]))
    infos = envs.step(np.array([1, 2]))[3]
    for slot, info in enumerate(infos):
        assert info.keys() == {"action", "terminal_observation", "TimeLimit.truncated"}
        assert info["action"] == slot + 1
    assert envs.reset_infos == [{"started": True}] * 2


def test_terminal_observation_and_time_limit(make: Make) -> None:
    envs = sb3(make, limited(2))
    observations = envs.reset()
    np.testing.assert_array_equal(observations, [[0, 0], [1, 0]])
    for _ in range(2):
        _, _, dones, infos = envs.step(np.array([1, 1]))
        assert not dones.any()
        assert all("terminal_observation" not in info for info in infos)
        assert not any(info["TimeLimit.truncated"] for info in infos)
    observations, rewards, dones, infos = envs.step(np.array([1, 1]))
    np.testing.assert_array_equal(observations, [[0, 3], [1, 0]])
    assert rewards.dtype == np.float32
    np.testing.assert_array_equal(dones, [False, True])
    assert infos[1]["TimeLimit.truncated"] is True
    np.testing.assert_array_equal(infos[1]["terminal_observation"], [1, 3])
    envs.step(np.array([1, 1]))
    _, _, dones, infos = envs.step(np.array([1, 1]))
    assert dones[0]
    assert infos[0]["TimeLimit.truncated"] is False
    np.testing.assert_array_equal(infos[0]["terminal_observation"], [0, 5])


def test_an_environment_that_raises_ends_its_episode(make: Make) -> None:
    envs = sb3(make, counting(2, {1: {2: "raise"}}, infos=True))
    envs.reset()
    envs.step(np.array([1, 1]))
    observations, rewards, dones, infos = envs.step(np.array([1, 1]))
    assert (dones.tolist(), rewards.tolist(), observations.tolist()) == ([False, True], [1, 0], [[0, 2], [1, 0]])
    assert infos[0] == {"action": 1, "TimeLimit.truncated": False}
    np.testing.assert_array_equal(infos[1].pop("terminal_observation"), [1, 1])
    assert infos[1] == {"worker_lost": True, "env_error": "ValueError: planned error", "TimeLimit.truncated": True}
    assert envs.reset_infos == [{"started": True}] * 2


def test_a_lost_worker_ends_the_episodes_of_its_slots(make_local: Make) -> None:
    envs = sb3(make_local, counting(4, {2: {2: "exit"}}, infos=True))
    envs.reset()
    envs.step(np.ones(4, np.int64))
    _, _, dones, infos = envs.step(np.ones(4, np.int64))
    assert dones.tolist() == [False, False, True, True]
    for slot in (2, 3):
        assert infos[slot].pop("terminal_observation")[0] == slot
        assert infos[slot] == {"worker_lost": True, "TimeLimit.truncated": True}
    assert envs.reset_infos == [{"started": True}] * 4


def test_vectorised_blocks(cluster: str) -> None:
    def block(count: int) -> SyncVectorEnv:
        return SyncVectorEnv([_limited(0, 2, 9)] * count, autoreset_mode="SameStep")

    with ClusterEnv.from_blocks(block, 4, cluster=cluster) as batch:
        envs = batch.as_sb3()
        assert envs.env_is_wrapped(TimeLimit) == [True] * 4
        assert envs.env_is_wrapped(Statistics, indices=1) == [False]
        with pytest.raises(ConfigError, match="cannot reach the rows of a vectorised environment"):
            envs.set_options([{}] * 4)
        envs.reset()
        assert envs.reset_infos == [{"started": True}] * 4
        assert envs.step(np.arange(4) % 3)[3][2] == {"action": 2, "TimeLimit.truncated": False}
        infos = envs.step(np.arange(4) % 3)[3]
        assert [info.pop("terminal_observation")[1] for info in infos] == [2] * 4
        assert infos == [{"action": slot % 3, "TimeLimit.truncated": False} for slot in range(4)]
        assert envs.reset_infos == [{"started": True}] * 4


def test_dict_observations(make: Make) -> None:
    space = spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Discrete(3))
    factories = [lambda: SpaceEnv(space)] * 2
    ours, theirs = sb3(make, factories), vec_env.DummyVecEnv(factories)
    for envs in (ours, theirs):
        envs.seed(1)
    assert_same(dict(ours.reset()), dict(theirs.reset()))
    for _ in range(5):
        one, other = ours.step(np.array([1, 2])), theirs.step(np.array([1, 2]))
        assert_same(dict(one[0]), dict(other[0]))
        np.testing.assert_array_equal(one[2], other[2])
        for mine, reference in zip(one[3], other[3], strict=True):
            if "terminal_observation" in reference:
                assert_same(dict(mine["terminal_observation"]), dict(reference["terminal_observation"]))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)))),
        spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple((spaces.MultiBinary(2), spaces.Box(-1, 1, (1,))))),
        spaces.Dict(a=spaces.Text(4), b=spaces.Discrete(2)),
    ],
    ids=["tuple", "dict", "text"],
)
def test_actions_of_several_parts_come_one_per_environment(make: Make, space: spaces.Space[Any]) -> None:
    # Two environments and two parts: what is meant cannot be told by counting.
    factories = [lambda: SpaceEnv(spaces.Discrete(3), space)] * 2
    ours, theirs = sb3(make, factories), vec_env.DummyVecEnv(factories)
    space.seed(3)
    for envs in (ours, theirs):
        envs.reset()
    for _ in range(2):
        actions = [space.sample() for _ in range(2)]
        infos = [envs.step(actions)[3] for envs in (ours, theirs)]
        assert all("got" in info for info in infos[0])
        assert_same(*infos)


def test_actions_of_a_dict_space_may_come_as_a_batch(make_here: Make) -> None:
    space = spaces.Dict(a=spaces.Discrete(3))
    envs = sb3(make_here, [lambda: SpaceEnv(spaces.Discrete(3), space)] * 2)
    envs.reset()
    batch, listed = envs.step({"a": np.array([1, 2])})[3], envs.step([{"a": 1}, {"a": 2}])[3]
    assert batch == listed


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([(1, [0.0])], "got 1 actions for 2 environments. Pass one action per environment"),
        ([(1, [0.0]), (1,)], "an action does not have the structure of Tuple"),
        ([(1, [0.0], 2), (1, [0.0], 2)], "an action does not have the structure of Tuple"),
        ([3, 4], "an action does not have the structure of Tuple"),
        (3, "the actions are 3. Pass a list with one action for each of 2 environments"),
        (None, "the actions are None. Pass a list"),
        ([(1, [0.0]), (7, [0.0])], "the action .*7.* in row 1 is out of range"),
    ],
)
def test_actions_of_several_parts_that_do_not_fit(make_here: Make, actions: Any, words: str) -> None:
    space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (1,))))
    envs = sb3(make_here, [lambda: SpaceEnv(spaces.Discrete(3), space)] * 2)
    envs.reset()
    with pytest.raises(ActionError, match=words):
        envs.step(actions)
    envs.step([(1, [0.0]), (2, [0.5])])


def test_observations_are_copies(make: Make) -> None:
    envs = sb3(make, counting(2))
    first = envs.reset()
    second = envs.step(np.array([0, 0]))[0]
    envs.step(np.array([0, 0]))
    np.testing.assert_array_equal(first[:, 1], [0, 0])
    np.testing.assert_array_equal(second[:, 1], [1, 1])


# Seeds and options.


def test_a_seed_is_used_once(make: Make) -> None:
    envs = sb3(make, counting(3))
    assert list(envs.seed(7)) == [7, 8, 9]
    envs.reset()
    assert envs.get_attr("last_seed") == [7, 8, 9]
    envs.env_method("__setattr__", "last_seed", None)
    envs.reset()
    assert envs.get_attr("last_seed") == [None, None, None]


def test_options_are_used_once(make: Make) -> None:
    envs = sb3(make, counting(2))
    envs.set_options({"level": 2})
    envs.reset()
    assert envs.get_attr("last_options") == [{"level": 2}] * 2
    envs.reset()
    assert envs.get_attr("last_options") == [None, None]


def test_options_by_environment(make: Make) -> None:
    given = [{"level": 2}, {}, {"level": 3, "start": np.array([1, 2])}, None]
    ours, theirs = sb3(make, counting(4)), vec_env.DummyVecEnv(counting(4))
    for envs in (ours, theirs):
        envs.seed(7)
        envs.set_options(given)
    assert_same(ours.reset(), theirs.reset())
    assert_same(ours.get_attr("last_options"), theirs.get_attr("last_options"))
    assert ours.get_attr("last_seed") == theirs.get_attr("last_seed") == [7, 8, 9, 10]
    ours.reset()
    assert ours.get_attr("last_options") == [None] * 4, "they are used once"


def test_options_by_environment_outlive_a_worker(make_local: Make, tmp_path: pathlib.Path) -> None:
    note = str(tmp_path / "died")
    envs = sb3(make_local, [lambda slot=slot: DiesOnce(slot, note) for slot in range(4)])
    envs.set_options([{"level": slot} for slot in range(4)])
    envs.reset()
    assert envs.get_attr("last_options") == [{"level": slot} for slot in range(4)]
    assert envs.envs.restarts == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([{"level": 1}], "options has 1 dictionaries, but the batch has 2 environments. Pass one for each"),
        ([{"level": 1}, 3], "options=.*3.* must be a dictionary, a list of dictionaries, or None"),
        ("level", "options='level' must be a dictionary"),
    ],
)
def test_options_that_do_not_fit_are_refused_at_once(make_here: Make, options: Any, words: str) -> None:
    envs = sb3(make_here, counting(2))
    with pytest.raises(ConfigError, match=words):
        envs.set_options(options)
    envs.reset()
    assert envs.get_attr("last_options") == [None, None]


# Calls by index.


def test_get_and_set_attributes_by_index(make: Make) -> None:
    envs = sb3(make, counting(3))
    assert envs.get_attr("slot") == [0, 1, 2]
    assert envs.get_attr("slot", indices=1) == [1]
    assert envs.get_attr("slot", indices=[2, 0]) == [2, 0]
    envs.set_attr("length", 4, indices=[0, 2])
    assert envs.get_attr("length") == [4, 10, 4]
    envs.set_attr("plan", [1, 2])
    assert envs.get_attr("plan") == [[1, 2]] * 3, "a list is one value, as in Stable-Baselines3"


def test_methods_by_index(make: Make) -> None:
    envs = sb3(make, counting(3))
    assert envs.env_method("double", 4) == [8, 8, 8]
    assert envs.env_method("double", value=4, indices=[1]) == [8]
    assert envs.env_method("double", 4, indices=2) == [8]


def test_indices_are_those_of_a_list(make: Make) -> None:
    envs = sb3(make, counting(3))
    assert envs.get_attr("slot", indices=-1) == [2]
    assert envs.get_attr("slot", indices=[0, -1]) == [0, 2]
    assert envs.env_method("double", 4, indices=[-3]) == [8]
    with pytest.raises(ConfigTypeError, match=r"indices=1\.5 must be a whole number"):
        envs.get_attr("slot", indices=1.5)
    envs.set_attr("length", 4, indices=[-2])
    assert envs.get_attr("length") == [10, 4, 10]
    assert envs.env_is_wrapped(TimeLimit, indices=-1) == [False]
    with pytest.raises(ConfigError, match="names slot -4"):
        envs.get_attr("slot", indices=-4)


def test_nobody_is_asked_where_no_index_is_given(make: Make) -> None:
    envs = sb3(make, counting(2))
    nobody = np.flatnonzero([False, False])
    assert envs.get_attr("slot", indices=nobody) == []
    assert envs.env_method("double", 4, indices=nobody) == []
    assert envs.env_is_wrapped(TimeLimit, indices=[]) == []
    envs.set_attr("length", 4, indices=nobody)
    assert envs.get_attr("length") == [10, 10]


def test_a_method_may_have_an_argument_called_name(make: Make) -> None:
    envs = sb3(make, counting(2))
    assert envs.env_method("has_wrapper_attr", name="slot") == [True, True]


def test_has_attr_does_not_call(make: Make) -> None:
    envs = sb3(make, counting(2))
    assert envs.has_attr("slot")
    assert envs.has_attr("double"), "a method with an argument"
    assert not envs.has_attr("no_such_thing")


def test_wrappers_are_known_by_their_class(make: Make) -> None:
    envs = sb3(make, [lambda: RecordEpisodeStatistics(CountingEnv())] * 2)
    assert envs.env_is_wrapped(RecordEpisodeStatistics) == [True, True]
    assert envs.env_is_wrapped(RecordEpisodeStatistics, indices=[1]) == [True]
    assert envs.env_is_wrapped(TimeLimit) == [False, False]
    assert envs.env_is_wrapped(Statistics) == [False, False], "only its name is a part of the other's"


def test_wrappers_are_known_by_what_they_are_derived_from(make: Make) -> None:
    factories = [lambda: RecordEpisodeStatistics(OurTimeLimit(CountingEnv(), 5)), CountingEnv]
    ours, theirs = sb3(make, factories), vec_env.DummyVecEnv(factories)
    namesake = type("TimeLimit", (gymnasium.Wrapper,), {})
    around: list[type] = [OurTimeLimit, TimeLimit, gymnasium.Wrapper, gymnasium.Env]
    others: list[type] = [Statistics, CountingEnv, namesake]
    assert [ours.env_is_wrapped(kind) for kind in around] == [[True, False]] * 4
    assert [ours.env_is_wrapped(kind) for kind in others] == [[False, False]] * 3
    for kind in around + others:
        assert ours.env_is_wrapped(kind) == theirs.env_is_wrapped(kind)


def test_images(make: Make) -> None:
    envs = sb3(make, counting(2, render_mode="rgb_array"))
    assert envs.render_mode == "rgb_array"
    envs.reset()
    images = envs.get_images()
    assert_same(list(images), [np.full((2, 2, 3), slot, dtype=np.uint8) for slot in range(2)])
    assert envs.render(mode="rgb_array").shape[2] == 3


def test_metadata_is_that_of_the_environments(make_here: Make) -> None:
    factories = [lambda: WalkEnv(render_mode="rgb_array")] * 2
    ours, theirs = sb3(make_here, factories), vec_env.DummyVecEnv(factories)
    assert ours.metadata == theirs.metadata == {"render_modes": ["rgb_array"], "render_fps": 30}


# The rest of Stable-Baselines3.


def test_vec_monitor_counts_episodes(make: Make) -> None:
    envs = vec_env.VecMonitor(sb3(make, counting(2, length=3)))
    envs.reset()
    for _ in range(3):
        _, _, dones, infos = envs.step(np.array([1, 2]))
    assert dones.all()
    assert [(info["episode"]["r"], info["episode"]["l"]) for info in infos] == [(3.0, 3), (6.0, 3)]


def test_vec_normalize_and_frame_stack(make_here: Make) -> None:
    envs = vec_env.VecFrameStack(vec_env.VecNormalize(sb3(make_here, [WalkEnv] * 2)), n_stack=3)
    assert envs.reset().shape == (2, 9)
    for _ in range(30):
        observations, _, _, _ = envs.step(np.zeros((2, 3), np.float32))
    assert np.isfinite(observations).all()


def test_check_nan(make_here: Make) -> None:
    envs = vec_env.VecCheckNan(sb3(make_here, [WalkEnv] * 2), raise_exception=True)
    envs.reset()
    envs.step(np.zeros((2, 3), np.float32))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_ppo_learns_a_little(make: Make) -> None:
    from stable_baselines3 import PPO

    envs = vec_env.VecMonitor(sb3(make, [lambda: gymnasium.make("CartPole-v1")] * 4))
    model = PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=2, seed=1, device="cpu")
    model.learn(total_timesteps=384)
    assert model.num_timesteps == 384
    episodes = list(model.ep_info_buffer or ())
    assert len(episodes) > 4
    assert all(8 <= episode["r"] == episode["l"] <= 500 for episode in episodes)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_ppo_samples_bits_as_floats(make_here: Make) -> None:
    from stable_baselines3 import PPO

    envs = sb3(make_here, [lambda: SpaceEnv(spaces.Box(0, 1, (2,)), spaces.MultiBinary(3))] * 2)
    model = PPO("MlpPolicy", envs, n_steps=8, batch_size=16, n_epochs=1, seed=1, device="cpu")
    model.learn(total_timesteps=16)
    assert model.num_timesteps == 16


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_ppo_learns_the_same_as_on_dummy_vec_env(make_local: Make) -> None:
    from stable_baselines3 import PPO

    factories = [lambda: gymnasium.make("CartPole-v1")] * 4
    weights = []
    for envs in (sb3(make_local, factories), vec_env.DummyVecEnv(factories)):
        model = PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=2, seed=1, device="cpu")
        model.learn(total_timesteps=256)
        weights.append(model.policy.state_dict()["action_net.weight"].numpy())
    np.testing.assert_array_equal(weights[0], weights[1])


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_other_autoreset_modes_are_refused(make_here: Make, mode: str) -> None:
    with pytest.raises(ConfigError, match="SameStep"):
        make_here(counting(2), autoreset_mode=mode).as_sb3()


def test_infos_of_gymnasium_0_29_are_refused(make_here: Make) -> None:
    with pytest.raises(ConfigError, match=r"infos='gymnasium-0\.29' .* Make the batch without infos="):
        sb3(make_here, counting(2), infos="gymnasium-0.29")


def test_observations_that_the_next_step_overwrites_are_refused(make_here: Make) -> None:
    with pytest.raises(ConfigError, match="copy=False"):
        sb3(make_here, counting(2), copy=False)


def test_close_closes_the_batch(make: Make) -> None:
    batch = make(counting(2), autoreset_mode="SameStep")
    batch.as_sb3().close()
    assert batch.closed
