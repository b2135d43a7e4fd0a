"""The calls of a ClusterEnv into its environments: methods and attributes, by name."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from clusterenv.env import checks
from clusterenv.env.turns import Pending

if TYPE_CHECKING:
    from clusterenv.env.engine import Engine
    from clusterenv.env.turns import Turns


class Calling:
    """The part of `ClusterEnv` with `call`, `get_attr` and `set_attr`. What is declared here, `ClusterEnv` sets."""

    num_envs: int
    _engine: Engine
    _turns: Turns

    def call(self, name: str, *args: Any, indices: Any = None, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of the environments, or read an attribute.

        Args:
            name: of the method or attribute, found through wrappers.
            *args: for the method.
            indices: which slots, None for all.
            **kwargs: for the method.

        Returns:
            One result per slot.

        Raises:
            EnvError: the method raised; it is also an instance of what was raised.
            ResultError: an argument or a result cannot be pickled.
        """
        with self._turns:
            self._begin_call("call", checks.call_name(name), args, kwargs, indices)
            return self._end_call(None)

    def call_async(self, name: str, /, *args: Any, indices: Any = None, **kwargs: Any) -> None:
        """The first half of `call`."""
        with self._turns:
            self._begin_call("call_async", checks.call_name(name), args, kwargs, indices)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The second half of `call`; `timeout` as in `step_wait`, with `timeouts.call_s`."""
        with self._turns:
            self._turns.require_pending(Pending.CALL)
            return self._end_call(checks.wait_limit(timeout))

    def get_attr(self, name: str, indices: Any = None) -> tuple[Any, ...]:
        """Read an attribute of the environments, one value per slot."""
        return self.call(name, indices=indices)

    def set_attr(self, name: str, values: Any, indices: Any = None) -> None:
        """Set an attribute of the environments.

        Args:
            name: of the attribute, found through wrappers.
            values: a list or tuple with one value per slot, or one value for all.
            indices: which slots, None for all.
        """
        with self._turns:
            self._turns.require_idle("set_attr")
            slots = checks.slot_indices(indices, self.num_envs)
            given = dict(zip(slots.tolist(), checks.values_per_slot(values, len(slots)), strict=True))
            arguments = {
                worker: (rows, checks.call_name(name), [given[slot] for slot in block])
                for worker, rows, block in self._engine.by_worker(slots)
            }
            self._turns.start(Pending.CALL, lambda: self._engine.begin_call("set_attr", name, slots, arguments))
            self._turns.finish(functools.partial(self._engine.end_call, None))

    def _begin_call(self, half: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], indices: Any) -> None:
        self._turns.require_idle(half)
        slots = checks.slot_indices(indices, self.num_envs)
        arguments = {worker: (rows, name, args, kwargs) for worker, rows, _ in self._engine.by_worker(slots)}
        self._turns.start(Pending.CALL, lambda: self._engine.begin_call("call", name, slots, arguments))

    def _end_call(self, timeout: float | None) -> tuple[Any, ...]:
        return tuple(self._turns.finish(functools.partial(self._engine.end_call, timeout)))
