"""reset: seeds, options, masks, and what the next step sees."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from clusterenv.errors import ConfigError, EnvError, ResultError
from tests.env.kit import LIMIT_S, WalkEnv, assert_same
from tests.zoo import CountingEnv, counting, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv import ClusterEnv

    Make = Callable[..., ClusterEnv]


def mask(*slots: int, num_envs: int = 4) -> Any:
    """A reset mask with these slots."""
    chosen = np.zeros(num_envs, dtype=np.bool_)
    chosen[list(slots)] = True
    return chosen


# Seeds.


def test_an_int_seed_counts_up(calm: ClusterEnv) -> None:
    calm.reset(seed=11)
    assert calm.get_attr("last_seed") == (11, 12, 13, 14)
    assert calm.np_random_seed == (11, 12, 13, 14)


@pytest.mark.parametrize(
    "seed", [[5, 3, 9, 0], (5, 3, 9, 0), np.array([5, 3, 9, 0]), np.array([5, 3, 9, 0], dtype=np.uint8)]
)
def test_a_list_of_seeds_is_taken_as_it_is(calm: ClusterEnv, seed: Any) -> None:
    calm.reset(seed=seed)
    assert calm.np_random_seed == (5, 3, 9, 0)


def test_a_numpy_seed_is_a_seed(calm: ClusterEnv) -> None:
    calm.reset(seed=np.int64(7))  # type: ignore[arg-type]
    assert calm.np_random_seed == (7, 8, 9, 10)


def test_none_among_seeds_leaves_that_slot_alone(calm: ClusterEnv) -> None:
    calm.reset(seed=100)
    calm.reset(seed=[1, None, 3, None])
    assert calm.np_random_seed == (1, 101, 3, 103)


def test_without_a_seed_the_random_streams_go_on(make: Make) -> None:
    ours, theirs = make([WalkEnv] * 3), SyncVectorEnv([WalkEnv] * 3)
    seeds: list[Any] = [4, None, None, [7, 8, 9], None]
    for seed in seeds:
        assert_same(ours.reset(seed=seed), theirs.reset(seed=seed))


def test_the_same_seed_gives_the_same_observations(make: Make) -> None:
    envs = make([WalkEnv] * 3)
    first, again = envs.reset(seed=5), envs.reset(seed=5)
    assert_same(first, again)
    other, _ = envs.reset(seed=50)
    assert not np.array_equal(first[0], other)
    assert len(np.unique(first[0][:, 0])) == 3, "each slot has a seed of its own"


@pytest.mark.parametrize("seed", [[1, 2, 3], [1, 2, 3, 4, 5], [], [-1, 0, 0, 0], -1, 2**63])
def test_seeds_with_a_wrong_value_are_refused(calm: ClusterEnv, seed: Any) -> None:
    _refused(calm, ValueError, "seed", seed=seed)


@pytest.mark.parametrize("seed", ["1", 1.5, {"seed": 1}, [1.5, 2, 3, 4], ["a", "b", "c", "d"], object()])
def test_seeds_of_a_wrong_type_are_refused(calm: ClusterEnv, seed: Any) -> None:
    _refused(calm, TypeError, "seed", seed=seed)


def test_a_seed_list_of_wrong_length_says_both_lengths(calm: ClusterEnv) -> None:
    with pytest.raises(ValueError, match=r"3 entries.*num_envs=4"):
        calm.reset(seed=[1, 2, 3])


def _refused(envs: ClusterEnv, kind: type[Exception], word: str, **arguments: Any) -> None:
    """The reset is refused, and no environment has noticed."""
    envs.reset(seed=0)
    before = envs.step([1, 1, 1, 1])[0]
    with pytest.raises(kind, match=word) as caught:
        envs.reset(**arguments)
    assert isinstance(caught.value, ConfigError)
    after = envs.step([1, 1, 1, 1])[0]
    np.testing.assert_array_equal(after[:, 1], before[:, 1] + 1)
    assert envs.np_random_seed == (0, 1, 2, 3)


# Options.


def test_options_reach_every_environment(calm: ClusterEnv) -> None:
    options = {"level": 3, "nested": {"a": [1, 2]}}
    calm.reset(options=options)
    assert calm.get_attr("last_options") == (options,) * 4


@pytest.mark.parametrize("options", [None, {}])
def test_no_options_stay_what_they_are(calm: ClusterEnv, options: Any) -> None:
    calm.reset(options={"something": 1})
    calm.reset(options=options)
    assert calm.get_attr("last_options") == (options,) * 4


def test_the_options_of_the_caller_are_left_alone(calm: ClusterEnv) -> None:
    calm.reset(seed=0)
    chosen = mask(1)
    options = {"level": 3, "reset_mask": chosen}
    calm.reset(options=options)
    assert options.keys() == {"level", "reset_mask"}
    assert options["reset_mask"] is chosen
    np.testing.assert_array_equal(chosen, mask(1))


def test_environments_get_the_options_without_the_mask(calm: ClusterEnv) -> None:
    calm.reset(options={"level": 1})
    calm.reset(options={"level": 2, "reset_mask": mask(0, 3)})
    assert calm.get_attr("last_options") == ({"level": 2}, {"level": 1}, {"level": 1}, {"level": 2})


@pytest.mark.parametrize("options", ["level", 3, [("level", 3)]])
def test_options_must_be_a_dictionary(calm: ClusterEnv, options: Any) -> None:
    _refused(calm, TypeError, "options", options=options)


def test_an_autoreset_has_no_options(make: Make) -> None:
    envs = make(counting(2, length=1))
    envs.reset(options={"level": 3})
    envs.step([0, 0])
    envs.step([0, 0])
    assert envs.get_attr("last_options") == (None, None)


# Masks.


def test_only_masked_slots_are_reset(calm: ClusterEnv) -> None:
    calm.reset(seed=0)
    calm.step([1] * 4)
    observations, infos = calm.reset(options={"reset_mask": mask(1, 2)})
    np.testing.assert_array_equal(observations, [[0, 1], [1, 0], [2, 0], [3, 1]])
    assert_same(infos, {"started": mask(1, 2), "_started": mask(1, 2)})
    observations, *_ = calm.step([1] * 4)
    np.testing.assert_array_equal(observations[:, 1], [2, 1, 1, 2])


def test_only_masked_slots_are_seeded(calm: ClusterEnv) -> None:
    calm.reset(seed=10)
    calm.reset(seed=100, options={"reset_mask": mask(0, 3)})
    assert calm.np_random_seed == (100, 11, 12, 103)
    calm.reset(seed=[1, 2, 3, 4], options={"reset_mask": mask(1)})
    assert calm.np_random_seed == (100, 2, 12, 103)


def test_a_full_mask_resets_all(calm: ClusterEnv) -> None:
    calm.reset(seed=0)
    calm.step([1] * 4)
    observations, infos = calm.reset(options={"reset_mask": np.ones(4, dtype=np.bool_)})
    np.testing.assert_array_equal(observations[:, 1], [0, 0, 0, 0])
    assert infos["_started"].all()


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ([True, False, False, False], TypeError),
        (np.array([1, 0, 0, 0]), TypeError),
        (np.array([1.0, 0, 0, 0]), TypeError),
        (True, TypeError),
        (None, TypeError),
        (np.ones(3, dtype=np.bool_), ValueError),
        (np.ones((4, 1), dtype=np.bool_), ValueError),
        (np.bool_(True) & np.zeros(4, dtype=np.bool_), ValueError),
    ],
)
def test_a_wrong_mask_is_refused(calm: ClusterEnv, bad: Any, kind: type[Exception]) -> None:
    _refused(calm, kind, "reset_mask", options={"reset_mask": bad})


def test_a_first_reset_must_be_whole(make: Make) -> None:
    envs = make(counting(4))
    with pytest.raises(ConfigError, match="first reset"):
        envs.reset(options={"reset_mask": mask(0)})
    observations, _ = envs.reset(options={"reset_mask": np.ones(4, dtype=np.bool_)})
    np.testing.assert_array_equal(observations[:, 0], [0, 1, 2, 3])


def test_a_masked_reset_spares_the_autoreset_of_others(make: Make) -> None:
    envs = make(counting(4, length=2))
    envs.reset()
    envs.step([1] * 4)
    assert envs.step([1] * 4)[2].all()
    envs.reset(options={"reset_mask": mask(0)})
    observations, rewards, terminated, _, _ = envs.step([1] * 4)
    # Slot 0 was reset by name and takes a step; the others are reset by this step.
    np.testing.assert_array_equal(observations[:, 1], [1, 0, 0, 0])
    np.testing.assert_array_equal(rewards, [1, 0, 0, 0])
    assert not terminated.any()


# Around a reset.


def test_a_reset_after_the_end_of_an_episode_is_not_repeated(make: Make) -> None:
    envs = make(counting(2, length=1))
    envs.reset()
    assert envs.step([1, 1])[2].all()
    envs.reset()
    observations, rewards, *_ = envs.step([1, 1])
    np.testing.assert_array_equal(observations[:, 1], [1, 1])
    np.testing.assert_array_equal(rewards, [1, 1])


def test_a_reset_in_the_middle_of_an_episode_starts_anew(calm: ClusterEnv) -> None:
    calm.reset()
    calm.step([1] * 4)
    observations, _ = calm.reset()
    np.testing.assert_array_equal(observations, [[0, 0], [1, 0], [2, 0], [3, 0]])


def test_observations_are_in_the_space_and_of_its_dtype(calm: ClusterEnv) -> None:
    observations, infos = calm.reset(seed=1)
    assert observations in calm.observation_space
    assert observations.dtype == np.float32
    assert type(infos) is dict


def test_observations_are_copies(calm: ClusterEnv) -> None:
    observations, _ = calm.reset()
    observations[:] = 77
    np.testing.assert_array_equal(calm.step([0] * 4)[0], [[0, 1], [1, 1], [2, 1], [3, 1]])
    np.testing.assert_array_equal(observations, np.full((4, 2), 77))


def test_without_copy_the_next_step_overwrites(make: Make) -> None:
    envs = make(counting(2), copy=False)
    observations, _ = envs.reset()
    np.testing.assert_array_equal(observations[:, 1], [0, 0])
    after, *_ = envs.step([0, 0])
    assert np.shares_memory(observations, after)
    np.testing.assert_array_equal(observations[:, 1], [1, 1])


class LockedInfo(CountingEnv):
    """Its reset returns an info that cannot be pickled."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """An info with a lock."""
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"lock": threading.Lock()} if options else {}


def test_a_reset_info_that_cannot_travel_is_named(make_local: Make) -> None:
    envs = make_local([LockedInfo] * 2, on_loss="raise")
    with pytest.raises((ResultError, EnvError), match="lock"):
        envs.reset(options={"lock": True})
    observations, _ = envs.reset()
    np.testing.assert_array_equal(observations[:, 1], [0, 0])


class FailsOnSeed(CountingEnv):
    """Cannot be reset with seed 13."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Superstitious."""
        if seed == 13:
            raise KeyError("thirteen")
        return super().reset(seed=seed, options=options)


def test_an_error_in_reset_tells_slot_and_seed(make: Make) -> None:
    envs = make([FailsOnSeed] * 3, on_loss="raise")
    with pytest.raises(KeyError, match="thirteen") as caught:
        envs.reset(seed=12)
    assert isinstance(caught.value, EnvError)
    assert (caught.value.slot, caught.value.seed, caught.value.step) == (1, 13, 0)
    assert "raise KeyError" in caught.value.remote_traceback
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step([0, 0, 0])
    with pytest.raises(ConfigError, match="reset_mask"):
        envs.reset(options={"reset_mask": mask(1, num_envs=3)})
    envs.reset(seed=20)
    np.testing.assert_array_equal(envs.step([1, 1, 1])[0][:, 1], [1, 1, 1])


def test_a_break_is_seen_also_by_slots_that_a_mask_leaves_out(make_local: Make) -> None:
    envs = make_local(counting(4))
    envs.reset(seed=1)
    envs.step([1] * 4)
    pid = envs.worker_pids()[0]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: envs.worker_pids()[0] is None, LIMIT_S)
    envs.reset(options={"reset_mask": mask(0)})  # slot 1 went down with the same worker
    _, _, _, truncated, infos = envs.step([1] * 4)
    np.testing.assert_array_equal(truncated, mask(1))
    np.testing.assert_array_equal(infos["worker_lost"], mask(1))


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"options": 3}])
def test_a_refused_reset_gives_nothing_up(make: Make, wrong: dict[str, Any]) -> None:
    envs = make(counting(2))
    envs.reset(seed=0)
    envs.send([1, 1])
    with pytest.raises((ConfigError, TypeError)):
        envs.reset(**wrong)
    assert envs.recv(min_slots=2)[0].tolist() == [[0, 1], [1, 1]]
