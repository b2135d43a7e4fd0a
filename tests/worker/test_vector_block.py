"""A block that is one vectorised environment."""

from __future__ import annotations

import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper

from clusterenv.spaces import leaves_of
from clusterenv.transport.arena import Arena, ArenaSpec, Word
from clusterenv.worker.report import EnvFailed
from clusterenv.worker.vector_block import VectorBlock
from tests.worker.kit import ScriptedEnv, ends_after, logged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLOTS = range(2, 5)


class Rows:
    """A block on the last rows of an arena of five slots, so that a wrong offset is seen."""

    def __init__(self, block: VectorBlock, arena: Arena) -> None:
        self.block, self.arena = block, arena
        self.everything = list(range(len(SLOTS)))

    def step(self) -> Any:
        return self.block.step(self.everything, self.block.actions(self.everything))

    def reset(self, seeds: list[int | None] | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.block.reset(self.everything, seeds or [None] * len(SLOTS), options)

    @property
    def observation(self) -> list[Any]:
        rows: list[Any] = self.arena.observation[0].tolist()
        return rows


@contextmanager
def bound(factory: Callable[[int], Any]) -> Iterator[Rows]:
    block = VectorBlock(factory, SLOTS)
    description = block.describe()
    observation, action = description.observation_space, description.action_space
    arena = Arena.create(ArenaSpec(5, 2, tuple(leaves_of(observation) or ()), tuple(leaves_of(action) or ())))
    try:
        block.bind(arena, 1, observation, action)
        yield Rows(block, arena)
    finally:
        arena.close()


def several(count: int, length: int = 2, **kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: ScriptedEnv(ends_after(length, {"k": 1}))] * count, **kwargs)


def inner(rows: Rows) -> Any:
    return rows.block._envs


def test_it_is_described_by_one_row() -> None:
    description = VectorBlock(several, SLOTS).describe()
    assert description.observation_space.shape == (2,)
    assert description.action_space == spaces.Discrete(3)
    assert description.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert description.slots == SLOTS


def test_its_own_autoreset_mode_is_told() -> None:
    block = VectorBlock(lambda count: several(count, autoreset_mode=AutoresetMode.SAME_STEP), SLOTS)
    assert block.describe().metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_a_step_fills_its_own_rows_only() -> None:
    with bound(several) as rows:
        rows.reset()
        rows.arena.action[0][:] = [9, 9, 0, 1, 2]
        report = rows.step()
        assert rows.observation == [[0, 0], [0, 0], [1, 1], [1, 1], [1, 1]]
        assert rows.arena.reward.tolist() == [0, 0, 1, 1, 1]
        assert [env.actions for env in inner(rows).envs] == [[0], [1], [2]]
        ((slots, infos),) = report.block_infos
        assert (slots.tolist(), infos["k"].tolist()) == ([2, 3, 4], [1, 1, 1])
        rows.step()
        assert rows.arena.terminated.tolist() == [False, False, True, True, True]


def test_a_reset_passes_seeds_and_options() -> None:
    with bound(several) as rows:
        rows.reset([5, None, 7], {"hard": True})
        assert [env.seeds for env in inner(rows).envs] == [[5], [None], [7]]
        assert inner(rows).envs[1].options == [{"hard": True}]
        rows.reset()
        assert inner(rows).envs[0].seeds == [5, None]


def test_a_reset_clears_reward_and_flags() -> None:
    with bound(lambda count: several(count, length=1)) as rows:
        rows.reset()
        rows.step()
        rows.reset()
        assert not rows.arena.reward.any()
        assert not rows.arena.terminated.any()


def test_a_reset_of_some_rows_is_a_mask() -> None:
    with bound(lambda count: several(count, autoreset_mode=AutoresetMode.DISABLED)) as rows:
        rows.reset()
        rows.step()
        rows.block.reset([1], [9], None)
        assert rows.observation[2:] == [[1, 1], [0, 2], [1, 1]]
        assert [env.seeds for env in inner(rows).envs] == [[None], [None, 9], [None]]


def test_a_reset_of_some_rows_leaves_reward_and_flags_of_the_others() -> None:
    with bound(lambda count: several(count, length=1, autoreset_mode=AutoresetMode.DISABLED)) as rows:
        rows.reset()
        rows.step()
        rows.block.reset([1], [None], None)
        assert rows.arena.terminated.tolist()[2:] == [True, False, True]


def test_a_replacement_resets_in_its_first_step() -> None:
    with bound(several) as rows:
        rows.block.replace_lost([1, 2, None])
        rows.step()
        assert rows.observation[2:] == [[0, 1]] * 3
        assert [env.seeds for env in inner(rows).envs] == [[1], [2], [None]]
        rows.step()
        assert rows.observation[2:] == [[1, 1]] * 3


def test_a_replacement_that_is_reset_by_name_without_seeds_gets_its_fresh_ones() -> None:
    with bound(several) as rows:
        rows.block.replace_lost([1, 2, None])
        rows.block.reset(range(3), [None, 9, None], None)
        assert [env.seeds for env in inner(rows).envs] == [[1], [9], [None]]
        rows.reset()
        assert [env.seeds[1] for env in inner(rows).envs] == [None] * 3, "they are no longer fresh"


def test_a_factory_that_raises_is_a_build_error() -> None:
    def broken(count: int) -> Any:
        raise OSError(f"no license for {count}")

    with pytest.raises(EnvFailed) as caught:
        VectorBlock(broken, SLOTS)
    assert (caught.value.failure.slot, str(caught.value.failure.error)) == (2, "no license for 3")


@pytest.mark.parametrize("doing", ["step", "reset"])
def test_an_error_is_a_failure_that_nothing_replaces(doing: str) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("engine stopped")

    with bound(several) as rows:
        rows.reset()
        setattr(inner(rows), doing, fails)
        (failure,) = getattr(rows, doing)().failures
        assert (failure.slot, failure.doing, failure.recovered) == (2, doing, False)
        assert "engine stopped" in failure.traceback
        assert rows.arena.words[rows.arena.word(1, Word.SLOT)] == -1


@pytest.mark.parametrize(
    "observation",
    [np.zeros((2, 2), np.float32), np.zeros((3, 3), np.float32), np.zeros((3, 2), complex), None],
    ids=["fewer rows", "longer rows", "complex", "None"],
)
def test_an_observation_that_does_not_fit_is_a_failure(observation: Any) -> None:
    zeros = np.zeros(3)
    with bound(several) as rows:
        rows.reset()
        inner(rows).step = lambda actions: (observation, zeros, zeros, zeros, {})
        (failure,) = rows.step().failures
        assert "a value has" in str(failure.error)


def test_call_returns_the_values_of_the_rows_asked_for() -> None:
    with bound(several) as rows:
        rows.reset()
        rows.step()
        assert rows.block.call([0, 2], "steps", (), {}) == [1, 1]
        with pytest.raises(EnvFailed) as caught:
            rows.block.call([0], "no_such_method", (), {})
        assert caught.value.failure.doing == "no_such_method"


def test_set_attr_needs_all_rows() -> None:
    with bound(several) as rows:
        rows.block.set_attr([0, 1, 2], "level", [1, 2, 3])
        assert [env.level for env in inner(rows).envs] == [1, 2, 3]
        with pytest.raises(EnvFailed, match="must name all its slots"):
            rows.block.set_attr([1], "level", [9])


class Whole(VectorEnv[Any, Any, Any]):
    """One environment with rows, and no `call`: as Gymnasium's own vectorised environments are."""

    gravity, levels = 9.8, ("easy", "hard")

    def __init__(self, count: int) -> None:
        self.num_envs = count
        self.single_observation_space = self.observation_space = spaces.Box(0, 1, (2,))
        self.single_action_space = self.action_space = spaces.Discrete(3)
        self.places = np.arange(count)

    def render(self) -> Any:
        return tuple(f"frame {row}" for row in range(self.num_envs))

    def first_frames(self) -> Any:
        return self.render()[:1]

    def double(self, number: int) -> int:
        return 2 * number


def wrapped(count: int) -> Any:
    return VectorWrapper(Whole(count))


@pytest.mark.parametrize("factory", [Whole, wrapped])
@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("render", (), ["frame 0", "frame 2"]),
        ("places", (), [0, 2]),
        ("gravity", (), [9.8, 9.8]),
        ("levels", (), [("easy", "hard")] * 2),
        ("double", (4,), [8, 8]),
    ],
)
def test_without_call_the_whole_environment_is_asked(factory: Any, name: str, args: Any, expected: list[Any]) -> None:
    assert VectorBlock(factory, SLOTS).call([0, 2], name, args, {}) == expected


def test_call_is_found_under_a_wrapper() -> None:
    block = VectorBlock(lambda count: VectorWrapper(several(count)), SLOTS)
    block.set_attr([0, 1, 2], "level", [1, 2, 3])
    assert block.call([0, 2], "level", (), {}) == [1, 3]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_name", "Whole has no attribute 'no_such_name', and no call() that would ask its rows"),
        ("first_frames", "first_frames() of Whole returned 1 values for 3 rows"),
    ],
)
def test_what_is_missing_without_call_is_told(name: str, message: str) -> None:
    with pytest.raises(EnvFailed) as caught:
        VectorBlock(wrapped, SLOTS).call([0], name, (), {})
    assert message in str(caught.value.failure.error)


@pytest.mark.parametrize("factory", [Whole, wrapped])
def test_without_set_attr_all_rows_get_one_value(factory: Any) -> None:
    block = VectorBlock(factory, SLOTS)
    block.set_attr([0, 1, 2], "gravity", [1.6, 1.6, 1.6])
    assert block._envs.unwrapped.gravity == 1.6
    with pytest.raises(EnvFailed) as caught:
        block.set_attr([0, 1, 2], "gravity", [1.6, 3.7, 1.6])
    assert "Whole has no set_attr(), so all its rows share one 'gravity'" in str(caught.value.failure.error)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda count: several(count + 1), "factory(3) returned a SyncVectorEnv with 4 rows; it must have 3"),
        (lambda count: ScriptedEnv(), "factory(3) returned a ScriptedEnv, which has no num_envs"),
        (lambda count: 5, "factory(3) returned '5' (int), not a vectorised environment"),
    ],
    ids=["one row more", "a single one", "a number"],
)
def test_a_factory_of_something_else_is_a_build_error(factory: Any, message: str) -> None:
    with pytest.raises(EnvFailed) as caught:
        VectorBlock(factory, SLOTS)
    assert (caught.value.failure.slot, caught.value.failure.doing) == (2, "build")
    assert message in str(caught.value.failure.error)


def test_what_has_the_wrong_rows_is_closed() -> None:
    made: list[Any] = []

    def factory(count: int) -> Any:
        made.append(several(count - 1))
        return made[0]

    with pytest.raises(EnvFailed):
        VectorBlock(factory, SLOTS)
    assert made[0].closed


def test_an_envpool_tells_its_rows_by_its_length() -> None:
    class Pool:
        observation_space, action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(3)
        step = reset = None

        def __init__(self, count: int) -> None:
            self.count = count

        def __len__(self) -> int:
            return self.count

    assert VectorBlock(Pool, SLOTS).describe().slots == SLOTS
    with pytest.raises(EnvFailed, match="with 4 rows"):
        VectorBlock(lambda count: Pool(count + 1), SLOTS)


def test_a_close_that_raises_is_logged() -> None:
    def close() -> None:
        raise RuntimeError("stuck")

    with bound(several) as rows, logged("clusterenv.worker.vector_block") as lines:
        inner(rows).close = close
        rows.block.close()
    assert "RuntimeError: stuck" in lines[0]


def test_actions_take_the_dtype_that_the_environment_insists_on() -> None:
    seen: list[Any] = []

    class Picky(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            seen.append(actions.dtype)
            return super().step(actions)

    def factory(count: int) -> Any:
        envs: Any = Picky([ScriptedEnv] * count)
        envs.spec = types.SimpleNamespace(action_array_spec={"action": types.SimpleNamespace(dtype=np.int32)})
        return envs

    with bound(factory) as rows:
        rows.reset()
        rows.step()
    assert seen == [np.dtype(np.int32)]


def test_it_is_stepped_as_a_whole() -> None:
    assert VectorBlock.whole
