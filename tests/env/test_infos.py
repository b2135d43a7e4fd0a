"""Infos: types, masks, nesting, final infos, and the dialect of Gymnasium 0.29."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from clusterenv import ClusterEnv
from clusterenv.errors import ConfigError, EnvError, ResultError
from tests.env.kit import SpaceEnv, assert_same
from tests.zoo import CountingEnv, counting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Make = Callable[..., ClusterEnv]

OBSERVATION = spaces.Box(0, 1, (2,))


def scripted(num_envs: int) -> list[Any]:
    return [_scripted(slot) for slot in range(num_envs)]


def _scripted(slot: int) -> Callable[[], SpaceEnv]:
    return lambda: SpaceEnv(OBSERVATION, slot=slot)


def both(
    make: Make, resets: Sequence[dict[str, Any]], steps: Sequence[Sequence[dict[str, Any]]], **kwargs: Any
) -> list[Any]:
    """Run infos through ClusterEnv and SyncVectorEnv; they must agree. `steps[t][slot]` ends an episode if "end"."""
    script = [
        [reset, *((1.0, bool(row[slot].get("end", False)), False, row[slot]) for row in steps)]
        for slot, reset in enumerate(resets)
    ]
    ours, theirs = make(scripted(len(resets)), **kwargs), SyncVectorEnv(scripted(len(resets)), **kwargs)
    actions = np.zeros(len(resets), dtype=np.int64)
    answers = [ours.reset(seed=1, options={"script": script})]
    assert_same(answers[0], theirs.reset(seed=1, options={"script": script}))
    for _ in steps:
        answers.append(ours.step(actions)[4])  # type: ignore[arg-type]
        assert_same(answers[-1], theirs.step(actions)[4])
    return answers


@pytest.mark.parametrize(
    "values",
    [
        (1, 2, 3),
        (1.5, 2, -1),
        (True, False, True),
        (np.float32(1), np.float32(2), np.float32(3)),
        (np.int8(1), np.int8(2), np.int8(3)),
        (np.bool_(True), np.bool_(False), np.bool_(True)),
        ("a", "bb", ""),
        (None, None, None),
        ([1, 2], [], [3]),
        ((1, 2), (3,), ()),
        (np.arange(3), np.arange(3, 6), np.arange(3)),
        (np.zeros((2, 2), np.uint8), np.ones((2, 2), np.uint8), np.zeros((2, 2), np.uint8)),
        (np.array(1.0), np.array(2.0), np.array(3.0)),
        (np.array(["a", "b"]), np.array(["c", "d"]), np.array(["e", "f"])),
        ({"x": 1}, {"x": 2}, {"x": 3}),
        ({"x": {"y": 1.5}}, {"x": {"z": "q"}}, {}),
        ({}, {}, {}),
        ({1, 2}, frozenset({3}), b"bytes"),
        (datetime.date(2020, 1, 1), 2**70, 1 + 2j),
        ("text", 1, None),
        (float("nan"), float("inf"), 0.0),
    ],
    ids=lambda values: "-".join(dict.fromkeys(type(value).__name__ for value in values)),
)
def test_types(make_here: Make, values: tuple[Any, ...]) -> None:
    infos = [{"key": value} for value in values]
    both(make_here, infos, [infos, infos[::-1]])


def test_many_types_on_workers(make_local: Make) -> None:
    info = {
        "int": 1,
        "float": 0.5,
        "bool": True,
        "text": "a",
        "none": None,
        "array": np.arange(3),
        "list": [1],
        "date": datetime.date(2020, 1, 1),
        "nested": {"deep": {"deeper": np.float32(1)}, "text": "b"},
    }
    both(make_local, [info] * 3, [[info] * 3, [{}, info, {}], [{"int": 3}, {"text": "c"}, info]])


def test_keys_that_appear_only_sometimes(make: Make) -> None:
    rows: list[list[dict[str, Any]]] = [
        [{}, {}, {}, {}],
        [{"a": 1}, {}, {}, {"a": 4}],
        [{}, {"b": 2.0, "c": {"d": 1}}, {"c": {"e": 2}}, {}],
        [{}, {}, {}, {"a": 7}],
    ]
    answers = both(make, [{}, {"r": 1}, {}, {}], rows)
    got = answers[2]
    np.testing.assert_array_equal(got["a"], [1, 0, 0, 4])
    np.testing.assert_array_equal(got["_a"], [True, False, False, True])
    assert answers[1].keys() == {"got", "_got"}, "nothing is left of the reset"


def test_without_infos_the_dictionary_is_empty(make: Make) -> None:
    envs = make(counting(3))
    assert envs.reset()[1] == {}
    assert envs.step([0, 0, 0])[4] == {}


def test_infos_of_two_calls_share_nothing(make: Make) -> None:
    envs = make(counting(3, infos=True))
    envs.reset()
    first = envs.step([0, 1, 2])[4]
    envs.step([2, 2, 2])
    np.testing.assert_array_equal(first["action"], [0, 1, 2])


def test_an_environment_may_change_its_info_afterwards(make: Make) -> None:
    class Reusing(CountingEnv):
        shared: dict[str, Any] = {"list": [], "array": np.zeros(1)}

        def step(self, action: Any) -> Any:
            self.shared["list"].append(action)
            self.shared["array"] += 1
            observation, reward, terminated, truncated, _ = super().step(action)
            return observation, reward, terminated, truncated, self.shared

    envs = make([Reusing])
    envs.reset()
    first = envs.step([1])[4]
    envs.step([1])
    np.testing.assert_array_equal(first["array"], [[1]])


def test_the_first_slot_with_a_key_decides_its_dtype(make: Make) -> None:
    both(make, [{}] * 4, [[{}, {"a": 1}, {"a": 2.9}, {"a": True}], [{"a": 1.5}, {"a": 1}, {}, {}]])


@pytest.mark.parametrize(
    "values",
    [(np.zeros(2), np.zeros(3)), (3, None), (1, 2**70), (5, {"a": 1})],
    ids=["another shape", "None", "too large", "no dictionary"],
)
def test_values_that_do_not_fit_together_are_refused_as_by_sync_with_the_slot(
    make: Make, values: tuple[Any, ...]
) -> None:
    script = [[{}, (1.0, False, False, {"moves": value})] for value in values]
    envs, theirs = make(scripted(2)), SyncVectorEnv(scripted(2))
    actions = np.zeros(2, dtype=np.int64)
    for batch in (envs, theirs):
        batch.reset(seed=1, options={"script": script})
    with pytest.raises((TypeError, ValueError, OverflowError, AttributeError)) as raised:
        theirs.step(actions)
    with pytest.raises(raised.type, match=r"the info of slot 1, \{'moves': .*does not fit"):
        envs.step(actions)


def _endless() -> dict[str, Any]:
    found: dict[str, Any] = {"plain": 1}
    found["again"] = found
    return {"first": 1, "found": found}


@pytest.mark.parametrize("at", ["reset", "step", "end"])
def test_an_info_that_contains_itself_is_an_error_with_slot_and_keys(make: Make, at: str) -> None:
    reset, step = (_endless(), {}) if at == "reset" else ({}, _endless())
    script = [[{}, (1.0, False, False, {})], [reset, (1.0, at == "end", False, step)]]
    envs = make(scripted(2), autoreset_mode="SameStep")
    keys = "'final_info' .*'found.*'again'" if at == "end" else "'found' .*'again'"
    if at != "reset":
        envs.reset(seed=3, options={"script": script})
    with pytest.raises(EnvError, match=f"raised in {'reset' if at == 'reset' else 'step'}: .*key {keys}") as caught:
        envs.reset(seed=3, options={"script": script}) if at == "reset" else envs.step([0, 0])
    assert isinstance(caught.value, ResultError)
    assert (caught.value.slot, caught.value.seed, caught.value.step) == (1, 4, 0 if at == "reset" else 1)
    envs.reset(seed=3, options={"script": [[{}]] * 2})
    envs.step([0, 0])  # nothing is broken


def test_an_info_that_is_nested_too_deep_is_named_by_its_first_keys(make_here: Make) -> None:
    class Deep(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            told: dict[str, Any] = {}
            for _ in range(2000):
                told = {"y": told}
            return super().reset(**kwargs)[0], told

    envs = make_here([Deep])
    with pytest.raises(EnvError, match=r"info key 'y' .* at (\['y'\]){7}\.\.\.;"):
        envs.reset()


def test_an_info_of_a_vectorised_block_that_contains_itself_is_an_error_too() -> None:
    class Endless(SyncVectorEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], _endless()

    envs = ClusterEnv.from_blocks(lambda count: Endless(counting(count)), 4, cluster="inproc:2")
    with envs, pytest.raises(EnvError, match=r"slot 0 .*info key 'found' .*'again'"):
        envs.reset(seed=1)


def test_an_info_that_cannot_travel_is_named(make_local: Make) -> None:
    class Locked(CountingEnv):
        def step(self, action: Any) -> Any:
            import threading

            *rest, info = super().step(action)
            return (*rest, {"good": 1, "held": threading.Lock()} if action == 2 else info)

    envs = make_local([Locked] * 2, on_loss="raise")
    envs.reset()
    envs.step([1, 1])
    with pytest.raises((EnvError, ResultError), match="held"):
        envs.step([1, 2])
    envs.reset()
    np.testing.assert_array_equal(envs.step([1, 1])[1], [1, 1])


def test_infos_larger_than_a_socket_arrive(make_local: Make) -> None:
    class Chatty(CountingEnv):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return (*rest, {"big": np.full(2_000_000, self.slot + 1.0)})  # 16 MB each

    def factory(slot: int) -> Callable[[], Chatty]:
        return lambda: Chatty(slot)

    envs = make_local([factory(slot) for slot in range(3)])
    envs.reset()
    infos = envs.step([1, 1, 1])[4]
    assert infos["big"].shape == (3, 2_000_000)
    np.testing.assert_array_equal(infos["big"][:, -1], [1, 2, 3])


# The end of an episode.


def test_final_info_keeps_masks_and_nesting(make: Make) -> None:
    rows: list[list[dict[str, Any]]] = [
        [{"a": 1, "end": True}, {"a": 2}, {"n": {"x": 3.0}, "end": True}, {}],
        [{}, {}, {}, {"text": "last", "end": True}],
    ]
    answers = both(make, [{"r": slot} for slot in range(4)], rows, autoreset_mode="SameStep")
    final = answers[1]["final_info"]
    np.testing.assert_array_equal(answers[1]["_final_info"], [True, False, True, False])
    np.testing.assert_array_equal(final["_a"], [True, False, False, False])
    np.testing.assert_array_equal(final["n"]["_x"], [False, False, True, False])
    np.testing.assert_array_equal(answers[1]["_r"], [True, False, True, False])


def test_final_observations_of_nested_spaces(make: Make) -> None:
    space = spaces.Dict(a=spaces.Box(0, 1, (2,)), b=spaces.Tuple((spaces.Discrete(3), spaces.Text(3))))
    factories = [lambda: SpaceEnv(space, length=2)] * 3
    ours = make(factories, autoreset_mode="SameStep")
    theirs = SyncVectorEnv(factories, autoreset_mode="SameStep")
    for envs in (ours, theirs):
        envs.reset(seed=4)
    for _ in range(4):
        assert_same(ours.step(np.zeros(3, np.int64)), theirs.step(np.zeros(3, np.int64)))


# The dialect of Gymnasium 0.29.


def statistics(num_envs: int, length: int = 3) -> list[Any]:
    """Environments as CleanRL makes them."""
    return [_with_statistics(slot, length + slot) for slot in range(num_envs)]


def _with_statistics(slot: int, length: int) -> Callable[[], Any]:
    return lambda: RecordEpisodeStatistics(CountingEnv(slot, length))


def test_the_loop_of_cleanrl_runs_as_it_is(make: Make) -> None:
    envs = make(statistics(3), autoreset_mode="SameStep", infos="gymnasium-0.29")
    next_obs, _ = envs.reset(seed=1)
    returns: list[tuple[int, float, int]] = []
    for step in range(12):
        obs, (next_obs, _, terminations, truncations, infos) = next_obs, envs.step([1, 1, 1])
        # What follows is the idiom of ppo.py ...
        if "final_info" in infos:
            for info in infos["final_info"]:
                if info and "episode" in info:
                    returns.append((step, float(info["episode"]["r"]), int(info["episode"]["l"])))
        # ... and that of dqn.py.
        real_next_obs = next_obs.copy()
        for idx, ended in enumerate(terminations | truncations):
            if ended:
                real_next_obs[idx] = infos["final_observation"][idx]
        np.testing.assert_array_equal(real_next_obs[:, 1], obs[:, 1] + 1)
    assert returns == [(t, n, n) for t, n in sorted([(t, n) for n in (3, 4, 5) for t in range(n - 1, 12, n)])]


def test_the_old_dialect_has_object_arrays_and_masks(make: Make) -> None:
    envs = make(statistics(2), autoreset_mode="SameStep", infos="gymnasium-0.29")
    envs.reset(seed=1)
    for _ in range(2):
        assert not {"final_info", "final_observation"} & envs.step([1, 1])[4].keys()
    infos = envs.step([1, 1])[4]
    assert not {"final_obs", "_final_obs"} & infos.keys()
    assert infos["final_info"].dtype == infos["final_observation"].dtype == object
    np.testing.assert_array_equal(infos["_final_info"], [True, False])
    np.testing.assert_array_equal(infos["_final_observation"], [True, False])
    assert infos["final_info"][0]["episode"]["l"] == 3
    np.testing.assert_array_equal(infos["final_observation"][0], [0, 3])
    assert infos["final_info"][1] is None
    assert infos["final_observation"][1] is None


def test_the_old_dialect_leaves_other_infos_alone(make: Make) -> None:
    envs = make(counting(2, infos=True), autoreset_mode="SameStep", infos="gymnasium-0.29")
    assert_same(envs.reset()[1], {"started": np.ones(2, np.bool_), "_started": np.ones(2, np.bool_)})
    assert_same(envs.step([1, 2])[4], {"action": np.array([1, 2]), "_action": np.ones(2, np.bool_)})


def test_the_old_dialect_with_recv(make: Make) -> None:
    envs = make(statistics(3, length=1), autoreset_mode="SameStep", infos="gymnasium-0.29")
    envs.reset(seed=1)
    envs.send([1, 1, 1])
    infos = envs.recv(min_slots=3)[4]
    ended = infos["env_id"].tolist().index(0)
    assert [info is not None for info in infos["final_info"]] == [row == ended for row in range(3)]
    np.testing.assert_array_equal(infos["final_observation"][ended], [0, 1])


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_the_old_dialect_needs_its_autoreset(make_here: Make, mode: str) -> None:
    with pytest.raises(ConfigError, match=f"needs autoreset_mode='SameStep', got '{mode}'"):
        make_here(counting(2), autoreset_mode=mode, infos="gymnasium-0.29")


@pytest.mark.parametrize("dialect", ["gymnasium-0.28", "", None, "sb3"])
def test_an_unknown_dialect_is_refused(make_here: Make, dialect: Any) -> None:
    with pytest.raises(ConfigError, match=r"gymnasium-0\.29"):
        make_here(counting(1), infos=dialect)
