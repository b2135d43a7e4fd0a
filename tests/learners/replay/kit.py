"""Batches that a made-up world shows, and a memory of it that is slow and obvious."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from clusterenv.env.batch import Batch, Episodes
from clusterenv.spaces import Leaf

SPACE = spaces.Box(-np.inf, np.inf, (), np.float64)
ACTION = Leaf((), np.dtype(np.int64))


class World:
    """Slots whose observations are all different numbers, so that none can be taken for another."""

    def __init__(self, slots: int, seed: int = 0, *, ends: float = 0.2) -> None:
        self.random = np.random.default_rng(seed)
        self.ends, self.seen = ends, 0
        self.now = [self._see() for _ in range(slots)]
        self.first = [bool(self.random.random() < 0.8) for _ in range(slots)]  # some were begun by somebody else

    def play(self, steps: int, slot: list[int], lost: list[bool] | None = None) -> Batch:
        """A fragment of each of these slots; one may come twice."""
        fragments = [self._fragment(steps, s, gone) for s, gone in zip(slot, lost or [False] * len(slot), strict=True)]

        def stacked(name: str, dtype: Any) -> Any:
            return np.stack([np.array(fragment[name], dtype) for fragment in fragments], axis=1)

        finals = [(t, n, obs) for n, fragment in enumerate(fragments) for t, obs in fragment["final"]]
        rows = {"reward": np.float64, "terminated": bool, "truncated": bool}
        columns = {name: stacked(name, dtype) for name, dtype in rows.items()}
        obs, first = stacked("obs", np.float64), stacked("first", bool)
        return batch_of(
            obs=obs,
            first=first,
            states=(state_before(obs, first)[:-1],),
            action=stacked("action", np.int64),
            final_obs=np.array([obs for _, _, obs in finals], np.float64),
            final_at=(np.array([t for t, _, _ in finals], np.int64), np.array([n for _, n, _ in finals], np.int64)),
            slot=np.array(slot),
            worker_lost=np.array(lost or [False] * len(slot)),
            **columns,
        )

    def _see(self) -> float:
        self.seen += 1
        return float(self.seen)

    def _fragment(self, steps: int, slot: int, lost: bool) -> dict[str, list[Any]]:
        if lost:
            self.now[slot], self.first[slot] = self._see(), True
        told: dict[str, list[Any]] = {"obs": [self.now[slot]], "first": [self.first[slot]], "final": []}
        told |= {name: [] for name in ("action", "reward", "terminated", "truncated")}
        for t in range(steps):
            ended = bool(self.random.random() < self.ends)
            terminated = ended and bool(self.random.random() < 0.5)
            truncated = ended and (not terminated or bool(self.random.random() < 0.2))  # sometimes both
            told["action"].append(int(self.random.integers(100)))
            told["reward"].append(float(np.float32(self.random.normal())))
            told["terminated"].append(terminated)
            told["truncated"].append(truncated)
            if ended:
                told["final"].append((t, self._see()))
            told["obs"].append(self._see())
            told["first"].append(ended)
        self.now[slot], self.first[slot] = told["obs"][-1], told["first"][-1]
        return told


def state_before(obs: Any, first: Any) -> Any:
    """The recurrent state of a made-up policy, two numbers: nothing at the start of an episode."""
    return np.stack([10 * obs, -obs], axis=-1) * ~np.asarray(first)[..., None]


def batch_of(**fields: Any) -> Batch:
    """A batch of arrays with these fields, and nothing in the others."""
    steps, width = fields["reward"].shape
    empty: dict[str, Any] = {
        "logp": np.zeros((steps, width), np.float32),
        "params": np.zeros((steps, width, 2), np.float32),
        "value": None,
        "version": np.zeros((steps, width), np.int64),
        "epoch": 0,
        "lag": np.zeros((steps, width), np.int64),
        "divergence": np.zeros(width),
        "state": (),
        "episodes": Episodes(np.zeros(0), np.zeros(0), np.zeros(0)),
    }
    return Batch(**{**empty, **fields})


@dataclass
class Step:
    """A step of the slow memory."""

    obs: float
    action: int
    reward: float
    terminated: bool
    truncated: bool
    first: bool
    begins: bool
    after: float
    """What was seen after it; at the end of an episode the last of it."""
    taken: float = np.nan
    best: float = np.nan
    final_best: float = np.nan

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class SlowLanes:
    """Every step there ever was, in lists."""

    slots: int
    lanes: list[list[Step]] = field(init=False)

    def __post_init__(self) -> None:
        self.lanes = [[] for _ in range(self.slots)]

    def add(self, batch: Batch, taken: Any = None, best: Any = None, final_best: Any = None) -> None:
        finals = {(int(t), int(n)): i for i, (t, n) in enumerate(zip(*batch.final_at, strict=True))}
        for n, slot in enumerate(batch.slot.tolist()):
            lane = self.lanes[slot]
            anew = batch.first[0, n] or batch.worker_lost[n] or bool(lane and lane[-1].after != batch.obs[0, n])
            if lane and not lane[-1].ended and anew:
                lane[-1].truncated = True
            for t in range(batch.T):
                final = finals.get((t, n))
                begins = not lane or lane[-1].ended
                step = Step(
                    obs=batch.obs[t, n],
                    action=batch.action[t, n],
                    reward=batch.reward[t, n],
                    terminated=bool(batch.terminated[t, n]),
                    truncated=bool(batch.truncated[t, n]),
                    first=bool(batch.first[t, n]),
                    begins=begins,
                    after=batch.obs[t + 1, n] if final is None else batch.final_obs[final],
                )
                if taken is not None:
                    step.taken, step.best = taken[t, n], best[t, n]
                if final is not None and final_best is not None:
                    step.final_best = final_best[final]
                lane.append(step)

    def transition(self, slot: int, k: int, n_step: int, gamma: float) -> tuple[float, float, float, Step] | None:
        """(reward, discount, next observation, last step), or None if it is not complete."""
        total = 0.0
        for j in range(n_step):
            if k + j >= len(self.lanes[slot]):
                return None
            step = self.lanes[slot][k + j]
            total += gamma**j * step.reward
            if step.ended or j == n_step - 1:
                return total, 0.0 if step.terminated else gamma ** (j + 1), step.after, step
        raise AssertionError("unreachable")

    def value_after(self, slot: int, k: int, n_step: int) -> float:
        """What the policy thought of the observation that a transition ends with; NaN if nobody told."""
        lane = self.lanes[slot]
        for j in range(n_step):
            if lane[k + j].ended:
                return 0.0 if lane[k + j].terminated else lane[k + j].final_best
        return lane[k + n_step].best if k + n_step < len(lane) else np.nan
