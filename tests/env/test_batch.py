"""Batches from pieces: whole, split, with ends of episodes, with observations of several parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from clusterenv.env.batch import Batch, Piece, assemble, copied
from clusterenv.errors import ConfigTypeError
from tests.env.made_up import Leaky, beside, columns, ends
from tests.env.policies import Linear

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
POLICY = Linear(2, 5)
T = 4
DENSE = ("obs", "action", "reward", "terminated", "truncated", "first", "logp", "params", "value", "version")


def piece(worker: int, slots: list[int], *, afresh: bool = False, version: int = 0) -> Piece:
    made = columns(POLICY, T, len(slots), seed=worker + 1, version=version)
    return Piece(worker, made, np.array(slots), afresh)


def batch(*pieces: Piece, whole: Any = None, space: Any = BOX, newest: int = 9) -> Batch:
    return assemble(pieces, whole, space, epoch=2, newest=newest, divergence=np.array([0.25, 0.5, 0.75]))


def dense(made: Batch) -> dict[str, Any]:
    return {name: getattr(made, name) for name in DENSE}


def test_pieces_lie_side_by_side_in_the_order_given() -> None:
    pieces = piece(1, [2, 3], version=4), piece(0, [0, 1], afresh=True, version=7)
    made = batch(*pieces)
    assert (made.T, made.N, made.steps, made.epoch) == (T, 4, 16, 2)
    joined = beside(*[each.columns for each in pieces])
    np.testing.assert_array_equal(made.obs, joined.obs[0])
    for name in DENSE[1:]:
        np.testing.assert_array_equal(getattr(made, name), getattr(joined, name), err_msg=name)
    assert made.slot.tolist() == [2, 3, 0, 1]
    assert made.worker_lost.tolist() == [False, False, True, True]
    assert made.divergence.tolist() == [0.5, 0.5, 0.25, 0.25]
    assert made.lag[0].tolist() == [5, 5, 2, 2]


def test_the_whole_buffer_is_not_copied_and_a_copy_is() -> None:
    parts = piece(0, [0, 1]), piece(1, [2, 3])
    whole = beside(*[each.columns for each in parts])
    view, own = batch(*parts, whole=whole), batch(*parts, whole=copied(whole))
    for name, value in dense(view).items():
        assert np.shares_memory(value, getattr(whole, name)[0] if name == "obs" else getattr(whole, name)), name
        np.testing.assert_array_equal(getattr(own, name), value)
    assert not any(np.shares_memory(own.obs, array) for array in whole.obs)
    assert not np.shares_memory(own.params, whole.params)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_split_piece_is_the_same_as_a_whole_one(cut: int) -> None:
    whole = piece(0, [4, 5, 6, 7])
    ends(whole.columns, 1, 0, length=3, total=1.5, last=7.0)
    ends(whole.columns, 3, 2, length=4, total=2.5, last=8.0)
    one, two = batch(whole), batch(*whole.split(cut))
    for name, value in dense(one).items():
        np.testing.assert_array_equal(getattr(two, name), value, err_msg=name)
    assert two.slot.tolist() == [4, 5, 6, 7]
    assert sorted(zip(*map(list, two.final_at), strict=True)) == sorted(zip(*map(list, one.final_at), strict=True))
    assert [len(part.slots) for part in whole.split(cut)] == [cut, 4 - cut]


def test_split_parts_can_go_to_different_batches() -> None:
    whole = piece(2, [4, 5, 6])
    left, right = whole.split(1)
    np.testing.assert_array_equal(batch(left).reward, whole.columns.reward[:, :1])
    np.testing.assert_array_equal(batch(right).params, whole.columns.params[:, 1:])
    assert batch(right).slot.tolist() == [5, 6]
    assert right.worker == 2


def test_ends_of_episodes_are_found_where_they_are_in_the_batch() -> None:
    left, right = piece(0, [0, 1]), piece(1, [2, 3])
    ends(left.columns, 2, 1, length=3, total=1.5, last=5.0)
    ends(right.columns, 0, 0, length=9, total=2.5, last=6.0, truncated=True)
    ends(right.columns, 3, 0, length=3, total=3.5, last=7.0)
    made = batch(left, right)
    times, rows = made.final_at
    found = {(int(t), int(n)): made.final_obs[k].tolist() for k, (t, n) in enumerate(zip(times, rows, strict=True))}
    assert found == {(2, 1): [5.0, 5.0], (0, 2): [6.0, 6.0], (3, 2): [7.0, 7.0]}
    assert all((made.terminated | made.truncated)[t, n] for t, n in found)
    told = sorted(zip(*(part.tolist() for part in made.episodes), strict=True))
    assert told == [(1.5, 3, 1), (2.5, 9, 2), (3.5, 3, 2)]


def test_an_episode_that_was_not_seen_whole_has_no_statistics_but_a_last_observation() -> None:
    only = piece(0, [0, 1])
    ends(only.columns, 2, 1, length=0, total=1.5, last=5.0)
    made = batch(only)
    assert made.final_obs.tolist() == [[5.0, 5.0]]
    assert [len(part) for part in made.episodes] == [0, 0, 0]


def test_without_ends_there_is_nothing_but_the_shapes_are_there() -> None:
    made = batch(piece(0, [0]))
    assert made.final_obs.shape == (0, 2)
    assert [part.shape for part in made.final_at] == [(0,), (0,)]
    assert made.episodes.returns.dtype == np.float64


def parts_of(only: Piece) -> Piece:
    """The same with an observation of two leaves."""
    numbers = np.arange(only.columns.obs[0][..., 0].size).reshape(only.columns.obs[0].shape[:2])
    both = only.columns._replace(
        obs=[only.columns.obs[0], numbers], final=[only.columns.final[0], np.full(only.columns.reward.shape, 3)]
    )
    return Piece(only.worker, both, only.slots, only.afresh)


def test_observations_of_several_parts() -> None:
    space = spaces.Dict(a=BOX, b=spaces.Discrete(100))
    left, right = piece(0, [0, 1]), piece(1, [2])
    ends(left.columns, 1, 0, length=2, total=0.5, last=5.0)
    made = batch(parts_of(left), parts_of(right), space=space)
    assert made.obs["a"].shape == (T + 1, 3, 2)
    assert made.obs["b"].tolist()[1] == [2, 3, 1]
    assert made.final_obs["a"].tolist() == [[5.0, 5.0]]
    assert made.final_obs["b"].tolist() == [3]


def test_a_recurrent_state_and_a_policy_without_value() -> None:
    first, second = piece(0, [0, 1]), piece(1, [2])
    pieces = []
    for each in (first, second):
        state = [np.full((len(each.slots), 3), each.worker, np.float32)]
        pieces.append(Piece(each.worker, each.columns._replace(state=state, value=None), each.slots))
    made = batch(*pieces)
    assert made.value is None
    assert made.state[0][:, 0].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("cut", [1, 2])
def test_the_state_before_every_step(cut: int) -> None:
    parts = [columns(Leaky(), T, 3, seed=seed, state=True, every_state=True) for seed in (1, 2)]
    pieces = [Piece(0, parts[0], np.arange(3)), Piece(1, parts[1], np.arange(3, 6))]
    whole = beside(*parts)
    assert whole.states is not None
    for made in (batch(*pieces), batch(*pieces[0].split(cut), pieces[1].copied()), batch(*pieces, whole=whole)):
        assert made.states is not None
        np.testing.assert_array_equal(made.states[0], whole.states[0])
        np.testing.assert_array_equal(made.states[0][0], made.state[0])
    assert np.shares_memory(batch(*pieces, whole=whole).states[0], whole.states[0])  # type: ignore[index]
    assert not np.shares_memory(batch(*pieces, whole=copied(whole)).states[0], whole.states[0])  # type: ignore[index]


def test_nobody_asked_for_the_state_before_every_step() -> None:
    parts = columns(Leaky(), T, 3, state=True)
    piece = Piece(0, parts, np.arange(3))
    for made in (batch(piece), batch(*piece.split(1)), batch(piece.copied()), batch(piece, whole=copied(parts))):
        assert made.states is None
        assert made.state[0].shape == (3, 2)


def test_only_torch_makes_tensors() -> None:
    with pytest.raises(ConfigTypeError, match=r"to\('torch'\) must be given the module torch"):
        batch(piece(0, [0, 1])).to("torch")


def test_as_tensors() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    space = spaces.Dict(a=BOX, b=spaces.Discrete(100))
    only = piece(0, [0, 1])
    ends(only.columns, 1, 0, length=2, total=0.5, last=5.0)
    made = batch(parts_of(only), space=space)
    tensors = made.to(torch)
    kinds = {name: getattr(tensors, name).dtype for name in ("reward", "action", "terminated", "logp", "divergence")}
    assert kinds == {
        "reward": torch.float32,
        "action": torch.int64,
        "terminated": torch.bool,
        "logp": torch.float32,
        "divergence": torch.float32,
    }
    assert tensors.obs["b"].dtype == torch.int64
    assert tensors.final_obs["a"].tolist() == [[5.0, 5.0]]
    assert [part.tolist() for part in tensors.final_at] == [[1], [0]]
    assert tensors.episodes.lengths.tolist() == [2]
    assert tensors.epoch == 2
    made.params[:] = 0.0
    assert tensors.params.any(), "a tensor is no view of what the next rollout overwrites"


def test_a_batch_is_shown_in_one_line() -> None:
    only = piece(0, [0, 1], version=3)
    ends(only.columns, 1, 0, length=2, total=0.5, last=5.0)
    torch = pytest.importorskip("torch", reason="needs torch")
    made = batch(only)
    assert repr(made) == repr(made.to(torch)) == "Batch(T=4, N=2, episodes ended: 1, versions: 3 to 3)"
