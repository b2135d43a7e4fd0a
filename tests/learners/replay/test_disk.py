"""Memories on disk: in a file in place of memory, and saved, loaded, damaged."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.cgroups import free_memory
from clusterenv.errors import ConfigError, WeightsCorrupt
from clusterenv.learners.replay import disk
from clusterenv.learners.replay.lanes import Lanes
from clusterenv.learners.replay.priorities import Priorities, Sample
from clusterenv.learners.replay.sequences import SequenceReplay
from clusterenv.learners.replay.transitions import TransitionReplay
from clusterenv.spaces import Leaf
from tests.learners.replay.kit import ACTION, SPACE, World

if TYPE_CHECKING:
    import pathlib

STATE = (Leaf((2,), np.dtype(np.float64)),)
SLOTS = 3


def transitions(**changes: Any) -> TransitionReplay:
    given = {"slots": SLOTS, "capacity": 90, "n_step": 3, "prioritized": True, **changes}
    return TransitionReplay(SPACE, ACTION, **given)


def sequences(**changes: Any) -> SequenceReplay:
    given = {"slots": SLOTS, "capacity": 90, "length": 6, "burn_in": 3, "overlap": 2, "prioritized": True, **changes}
    return SequenceReplay(SPACE, ACTION, STATE, **given)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, Sample):
        assert_same((one.ids, one.weights, one.data), (other.ids, other.weights, other.data))
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert np.array_equal(one, other)


@pytest.mark.parametrize("make", [transitions, sequences])
@pytest.mark.parametrize("prioritized", [True, False])
def test_a_memory_in_a_file_is_like_one_in_memory(make: Any, prioritized: bool, tmp_path: pathlib.Path) -> None:
    world = World(SLOTS)
    replays = [make(prioritized=prioritized), make(prioritized=prioritized, folder=tmp_path / "scratch")]
    for _ in range(8):
        batch = world.play(11, [0, 1, 2])
        for replay in replays:
            replay.add(batch)
        assert_same(replays[0].sample(30), replays[1].sample(30))
    assert list((tmp_path / "scratch").iterdir()) == []  # nothing to see, and nothing to clear away


def test_a_disk_that_is_too_small_says_so_at_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"needs 2\.0 GiB in .*: No space left"):
        disk.zeros((2**31,), np.dtype(np.uint8), tmp_path)


@pytest.mark.parametrize("places", [2**58, 10**30])
def test_an_array_that_no_memory_holds_is_refused(places: int) -> None:
    with pytest.raises(ConfigError, match=r"GiB of memory, and got: .*Lower the capacity"):
        disk.zeros((places,), np.dtype(np.float64), None)


@pytest.mark.parametrize("make", [transitions, sequences])
def test_a_memory_that_would_only_fit_until_it_is_full_is_refused(make: Any) -> None:
    free = free_memory()
    assert free is not None
    for capacity in (free // 8, 10**30):  # every step has an observation of 8 bytes, and more beside it
        with pytest.raises(ConfigError, match=r"needs \d+ bytes .* available: a capacity of at most \d+ fits"):
            make(capacity=capacity, prioritized=False)


@pytest.mark.parametrize("make", [transitions, sequences])
@pytest.mark.parametrize("prioritized", [True, False])
def test_what_is_counted_beforehand_is_what_is_taken(
    make: Any, prioritized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []
    monkeypatch.setattr(disk, "refuse_too_large", lambda size, *, steps, **_: counted.append(size(steps)))
    replay = make(capacity=90_000, prioritized=prioritized)
    assert counted == [pytest.approx(replay.nbytes, abs=1000)]


@given(
    row=st.integers(1, 100),
    slots=st.integers(1, 9),
    steps=st.one_of(st.integers(1, 999), st.just(10**40)),
    free=st.integers(0, 10**6),
)
def test_the_largest_capacity_that_fits_is_told(row: int, slots: int, steps: int, free: int) -> None:
    def size(steps: int) -> int:
        return slots * (steps + 1) * row + Priorities.bytes_of(slots * steps)

    if size(steps) <= free:
        disk.refuse_too_large(size, slots=slots, steps=steps, free=free)
        return
    with pytest.raises(ConfigError, match=f"needs {size(steps)} bytes .* and {free} ") as told:
        disk.refuse_too_large(size, slots=slots, steps=steps, free=free)
    fits = int(str(told.value).split("at most ")[1].split()[0]) // slots
    assert size(fits + 1) > free
    assert not fits or size(fits) <= free


def test_a_machine_that_does_not_tell_refuses_nothing() -> None:
    disk.refuse_too_large(lambda steps: 10**30 * steps, slots=1, steps=1, free=None)


@pytest.mark.parametrize("make", [transitions, sequences])
@pytest.mark.parametrize("turns", [1, 8])
def test_what_is_loaded_goes_on_as_what_was_saved(make: Any, turns: int, tmp_path: pathlib.Path) -> None:
    world, replay = World(SLOTS), make()
    for _ in range(turns):
        replay.add(world.play(11, [0, 1, 2]))
        drawn = replay.sample(20)
        replay.update(drawn.ids, world.random.random(20))
    replay.save(tmp_path)
    other = make(seed=5)
    other.add(World(SLOTS, seed=9).play(7, [0, 1]))  # what was there before goes
    other.load(tmp_path)
    assert len(other) == len(replay)
    for _ in range(4):
        assert_same(replay.sample(30), other.sample(30))
        batch = world.play(11, [0, 1, 2])
        assert_same(replay.add(batch), other.add(batch))
        drawn = replay.sample(30)
        assert_same(drawn, other.sample(30))
        for each in (replay, other):
            each.update(drawn.ids, np.linspace(0, 1, 30))


@pytest.mark.parametrize("make", [transitions, sequences])
def test_what_was_interrupted_is_not_saved(make: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, replay = World(SLOTS), make()
    replay.add(world.play(11, [0, 1, 2]))
    replay.save(tmp_path)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Lanes, "_keep_finals", interrupted)
        with pytest.raises(KeyboardInterrupt):
            replay.add(world.play(11, [0, 1, 2]))
    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot be saved any more"):
            replay.save(tmp_path)
        replay.add(world.play(11, [0, 1, 2]))  # which makes it no better
    replay.load(tmp_path)  # what was saved before is still there, and sound
    replay.save(tmp_path)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"needs .* GiB in .*file/x, and got: Not a directory"):
        transitions(folder=tmp_path / "file" / "x")


def test_only_the_newest_is_kept_and_nothing_is_left_half_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, replay = World(SLOTS), transitions()
    for _ in range(3):
        replay.add(world.play(11, [0, 1, 2]))
        replay.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["000003"]
    (tmp_path / ".killed.new").mkdir()  # what a process has left that was killed meanwhile
    replay.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["000004"]

    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        replay.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["000004"]
    transitions().load(tmp_path)


@pytest.mark.parametrize("name", ["lanes.column.0", "priorities.leaves", "replay.json"])
def test_damage_is_noticed_and_changes_nothing(name: str, tmp_path: pathlib.Path) -> None:
    replay = transitions()
    replay.add(World(SLOTS).play(11, [0, 1, 2]))
    replay.save(tmp_path)
    (path,) = tmp_path.glob(f"*/{name}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    other = transitions()
    with pytest.raises(WeightsCorrupt, match=r"is damaged|cannot be read"):
        other.load(tmp_path)
    assert len(other) == 0
    path.unlink()
    with pytest.raises(WeightsCorrupt, match="cannot be read"):
        other.load(tmp_path)


def test_only_a_memory_like_it_takes_it(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="no memory was saved"):
        transitions().load(tmp_path)
    transitions().save(tmp_path)
    with pytest.raises(ConfigError, match="n_step=3, and this one has n_step=1"):
        transitions(n_step=1).load(tmp_path)
    with pytest.raises(ConfigError, match=r"alpha=0\.6, and this one has alpha=0\.5"):
        transitions(alpha=0.5).load(tmp_path)
    with pytest.raises(ConfigError, match="reward=None, and this one has reward=clip"):
        transitions(about={"reward": "clip"}).load(tmp_path)
    with pytest.raises(ConfigError, match="kind=transition, and this one has kind=sequence"):
        sequences().load(tmp_path)
    with pytest.raises(ConfigError, match="steps=30, and this one has steps=20"):
        transitions(capacity=60).load(tmp_path)


@pytest.mark.parametrize("changes", [{"length": 5}, {"burn_in": 2}, {"overlap": 1}])
def test_sequences_of_another_form_are_not_taken(changes: dict[str, int], tmp_path: pathlib.Path) -> None:
    replay = sequences()
    replay.add(World(SLOTS).play(20, [0, 1, 2]))
    replay.save(tmp_path)
    ((name, value),) = changes.items()
    with pytest.raises(ConfigError, match=f"and this one has {name}={value}"):
        sequences(**changes).load(tmp_path)
