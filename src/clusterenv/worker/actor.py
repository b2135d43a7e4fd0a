"""The policy's side of a worker: plays in the block's environments and records what a learner needs.

While it plays, an episode that ends is followed by the next one at once, whatever the autoreset mode of the batch: the
row after the last step of an episode is the first observation of the next, and the last observation itself is kept
beside it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from clusterenv import spaces
from clusterenv.envs import EPISODE_CONTINUES
from clusterenv.errors import PolicyError
from clusterenv.policy.base import at_slots, why_nan
from clusterenv.policy.streams import Streams

if TYPE_CHECKING:
    import numpy.typing as npt

    from clusterenv.policy.protocol import Distribution, RuntimeSpec
    from clusterenv.spaces import Leaf
    from clusterenv.sync.weights import WeightSpec
    from clusterenv.transport.arena import Arena
    from clusterenv.transport.fragments import Columns, Fragments
    from clusterenv.transport.weights import WeightBuffer
    from clusterenv.worker.block import EnvBlock
    from clusterenv.worker.report import Failure, Report


@dataclass(frozen=True, slots=True)
class Attachment:
    """A policy on its way to a worker, without its weights.

    Attributes:
        runtime: becomes what runs the policy.
        distribution: how actions follow from its parameters.
        state: the leaves of one slot's recurrent state.
        weights: how the flat weights become arrays.
        seed: of the random streams of the slots.
        name: of the policy, for errors.
        deterministic: act by the mode of the distribution, without exploring.
    """

    runtime: RuntimeSpec
    distribution: Distribution
    state: tuple[Leaf, ...]
    weights: WeightSpec
    seed: int
    name: str = "the policy"
    deterministic: bool = False


@dataclass(slots=True)
class Fragment:
    """The part of a played fragment that does not lie in shared memory.

    Attributes:
        buffer: where its columns are.
        steps: how many steps were played; fewer than asked for if it was stopped, or an environment failed
            for good.
        failures: environments that raised.
        env_s: time spent in the environments.
        policy_s: time spent in the policy.
        idle_s: how long the worker had nothing to play before this, since the fragment before it.
    """

    buffer: int
    steps: int = 0
    failures: list[Failure] = field(default_factory=list)
    env_s: float = 0.0
    policy_s: float = 0.0
    idle_s: float = 0.0


class Actor:
    """Plays fragments.

    Args:
        block: the environments.
        arena: where the block shows its newest observations.
        worker: which worker of the node this is.
        attachment: the policy.
        weights: where its newest weights are.
    """

    def __init__(
        self, block: EnvBlock, arena: Arena, worker: int, attachment: Attachment, weights: WeightBuffer
    ) -> None:
        self._block, self._worker, self._weights = block, worker, weights
        self._distribution, self._spec = at_slots(attachment.distribution, block.slots), attachment.weights
        self._deterministic, self._name = attachment.deterministic, attachment.name
        slots, count = block.slots, len(block.slots)
        mine = arena.spec.rows(slots)
        self._rows = list(range(count))
        self._observation = [array[mine] for array in arena.observation]
        self._reward, self._terminated = arena.reward[mine], arena.terminated[mine]
        self._truncated = arena.truncated[mine]
        # Where the block leaves the last observation of an episode before it resets the environment.
        self._final = [np.zeros_like(array) for array in self._observation]
        self._write_final = spaces.row_writer(block.observation_space, self._final)
        # Whether what ended is an episode for the learner only, whose return goes on in the next one.
        self._continues = np.zeros(count, dtype=np.bool_)
        self._streams = Streams(attachment.seed, slots)
        self._runtime = attachment.runtime.make()
        self._version, self._taken = -1, 0  # of the weights: their number, and the buffer's count when they were taken
        self._state = tuple(np.zeros((count, *leaf.shape), leaf.dtype) for leaf in attachment.state)
        # Whether the newest observation is the first of an episode.
        self._first = np.zeros(count, dtype=np.bool_)
        # The rows whose episode has ended in this step.
        self._ended: set[int] = set()
        # Of the episode that a row is in: its rewards so far, and which of all steps played here was its first.
        self._returns = np.zeros(count, dtype=np.float64)
        self._began = np.zeros(count, dtype=np.int64)
        self._played = 0
        # Whether an episode was seen from its beginning. One that was begun by `step(actions)` has no known return.
        self._whole = np.zeros(count, dtype=np.bool_)

    def share(self, fragments: Fragments) -> None:
        """Take the memory for fragments."""
        self._fragments = fragments
        self._buffers = [fragments.columns(buffer, self._block.slots) for buffer in range(fragments.spec.buffers)]

    def forget(
        self, *, stepped: npt.NDArray[np.intp], begun: npt.NDArray[np.intp], fresh: npt.NDArray[np.intp]
    ) -> None:
        """Somebody else has used the environments: what was known about their episodes is void.

        Args:
            stepped: rows that were stepped.
            begun: those of them whose last step was the reset after an episode.
            fresh: rows that were reset, also if they were stepped before.
        """
        self._first[stepped] = self._terminated[stepped] | self._truncated[stepped]
        self._first[begun] = True
        self._whole[stepped] = self._first[stepped]
        self._whole[list(self._block.going_on.intersection(stepped.tolist()))] = False
        self._whole[fresh] = self._first[fresh] = True
        self._restart(stepped)
        self._restart(fresh)

    def at_beginning(self) -> npt.NDArray[np.bool_]:
        """Which rows stand at the beginning of an episode whose return will be known."""
        begun: npt.NDArray[np.bool_] = self._first & (self._began == self._played)
        return begun

    def play(self, buffer: int, *, switch: bool, afresh: bool) -> Fragment:
        """Play one fragment.

        Args:
            buffer: which buffer to fill.
            switch: whether new weights are taken between two steps, or only before the first.
            afresh: begin new episodes in all environments; for the replacement of a lost worker.
        """
        result = Fragment(buffer)
        block, columns = self._block, self._buffers[buffer]
        mode, block.autoreset_mode = block.autoreset_mode, AutoresetMode.SAME_STEP
        block.keep_final = self._keep_final
        try:
            self._begin(columns, result, mode, afresh=afresh)
            self._play(columns, result, switch=switch)
        finally:
            block.autoreset_mode, block.keep_final = mode, None
            if result.steps:
                np.logical_or(self._terminated, self._truncated, out=self._first)
            # Every slot is in the middle of an episode now; in no autoreset mode does the next step owe a reset.
            self._terminated[:] = self._truncated[:] = False
        if result.steps:
            self._complete(columns, result.steps)
            self._refuse_nan(columns, result.steps)
        return result

    def _begin(self, columns: Columns, result: Fragment, mode: AutoresetMode, *, afresh: bool) -> None:
        self._ended.clear()
        rows, report = self._block.begin_episodes(mode, every=afresh)
        result.failures += report.failures
        self._first[rows], self._whole[rows] = True, True
        if not afresh:  # a game goes on that somebody else has played
            self._whole[[row for row in rows if row in self._block.going_on]] = False
        self._restart(rows)
        for stored, now in zip(columns.obs, self._observation, strict=True):
            stored[0] = now
        columns.first[0] = self._first
        for kept, part in zip(columns.state, self._state, strict=True):
            kept[...] = part
        self._take_weights()
        columns.version[...] = self._version

    def _play(self, columns: Columns, result: Fragment, *, switch: bool) -> None:
        """The hot loop: one call of the policy per step of the block, and as little else as there can be.

        Each call of NumPy costs half a microsecond and more, however few rows a block has. So what follows from the
        recorded rows is worked out by `_complete`, once for all of them.
        """
        distribution, block, runtime = self._distribution, self._block, self._runtime
        clock, worker = time.perf_counter, self._worker
        progress, stop = self._fragments.progress, self._fragments.stop
        steps = self._fragments.spec.steps
        noise = self._streams.draw(steps, distribution.draws, distribution.noise)
        for t in range(steps):
            if stop[worker] or any(not failure.recovered for failure in result.failures):
                return
            began = clock()
            if switch and self._weights.count != self._taken:
                self._take_weights()
                columns.version[t:] = self._version
            if columns.states is not None:
                for kept, part in zip(columns.states, self._state, strict=True):
                    kept[t] = part
            output = runtime([array[t] for array in columns.obs], self._state)
            params = output.params
            actions = distribution.mode(params) if self._deterministic else distribution.sample(params, noise[t])
            columns.action[t], columns.params[t] = actions, params
            if columns.value is not None:
                columns.value[t] = output.value
            self._state = output.state
            acted = clock()
            report = block.step(self._rows, list(distribution.to_env(actions)))
            stepped = clock()
            self._record(t, columns, result, report)
            progress[worker] += 1
            result.steps += 1
            result.env_s += stepped - acted
            result.policy_s += acted - began

    def _record(self, t: int, columns: Columns, result: Fragment, report: Report) -> None:
        """Keep what the block shows after step t, before the next step overwrites it."""
        for stored, now in zip(columns.obs, self._observation, strict=True):
            stored[t + 1] = now
        columns.reward[t], columns.terminated[t] = self._reward, self._terminated
        columns.truncated[t] = self._truncated
        self._returns += self._reward
        self._played += 1
        if self._ended or report.failures:
            self._note_ends(t, columns, result, report)

    def _note_ends(self, t: int, columns: Columns, result: Fragment, report: Report) -> None:
        for failure in report.failures:
            result.failures.append(failure._replace(at=t + 1))
            if failure.doing != "reset":  # one that raised in the reset after an episode has cut none
                self._whole[failure.slot - self._block.slots.start] = False
        for row in self._ended:
            self._end_episode(row, t, columns)
        self._forget_state(list(self._ended))
        self._ended.clear()

    def _complete(self, columns: Columns, steps: int) -> None:
        """Work out for the whole fragment what follows from its rows."""
        np.logical_or(columns.terminated[:steps], columns.truncated[:steps], out=columns.first[1 : steps + 1])
        columns.logp[:steps] = self._distribution.log_prob(columns.params[:steps], columns.action[:steps])

    def _refuse_nan(self, columns: Columns, steps: int) -> None:
        """Raise PolicyError if the policy gave NaN: finite weights may overflow. Once per fragment, which is cheap.

        This error comes in place of any failures of environments: an action that is NaN makes many of them raise.
        """
        for name, array in (("params", columns.params), ("logp", columns.logp), ("value", columns.value)):
            if array is not None and (bad := np.isnan(array[:steps])).any():
                t, row = (int(index[0]) for index in bad.nonzero()[:2])
                raise PolicyError(
                    f"{self._name} gave NaN as {name} in slot {self._block.slots[row]}, step {t} of {steps}, with "
                    f"version {columns.version[t, row]}. {why_nan(leaf[t, row] for leaf in columns.obs)}"
                )

    def _keep_final(self, row: int, observation: Any, info: Any) -> None:
        self._ended.add(row)
        self._write_final(row, observation)
        self._continues[row] = isinstance(info, dict) and bool(info.get(EPISODE_CONTINUES))

    def _end_episode(self, row: int, t: int, columns: Columns) -> None:
        for kept, last in zip(columns.final, self._final, strict=True):
            kept[t, row] = last[row]
        if self._continues[row]:
            columns.episode_length[t, row] = 0  # there is nothing to tell yet
            return
        columns.episode_return[t, row] = self._returns[row]
        # An episode that was cut, or not seen from its beginning, has no return worth telling.
        columns.episode_length[t, row] = self._played - self._began[row] if self._whole[row] else 0
        self._returns[row], self._began[row], self._whole[row] = 0.0, self._played, True

    def _restart(self, rows: Any) -> None:
        self._returns[rows], self._began[rows] = 0.0, self._played
        self._forget_state(rows)

    def _forget_state(self, rows: Any) -> None:
        if self._state:
            # The runtime's arrays may be its own: copies, because we write to them.
            self._state = tuple(np.array(part) for part in self._state)
            for part in self._state:
                part[rows] = 0

    def _take_weights(self) -> None:
        if self._weights.count == self._taken:
            return
        self._taken, self._version, flat = self._weights.take(self._spec.floats)
        self._runtime.load(self._spec.unflatten(flat))
