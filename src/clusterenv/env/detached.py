"""A policy that acts on the workers: its versions, when weights move, and what is known about its drift.

The life of a version: `publish` flattens the weights and, if they have changed, gives them a number. The estimator
compares the new policy with the one that each host holds, on observations that its workers sent. The host's rule
decides. If it asks, the weights are encoded once per version and base, and put where the workers of the host find them.
"""

from __future__ import annotations

import math
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.env.drift import Drift
from clusterenv.env.players import Players
from clusterenv.env.tally import Tally
from clusterenv.errors import ConfigError, named
from clusterenv.policy.adapters import as_policy
from clusterenv.policy.base import at_slots, check_slots, whole_number
from clusterenv.policy.protocol import Policy
from clusterenv.spaces import leaves_of
from clusterenv.sync.codec import EncodeOnce
from clusterenv.sync.rules import Reason, Situation
from clusterenv.sync.versions import Version
from clusterenv.sync.weights import WeightSpec
from clusterenv.transport.fragments import FragmentSpec
from clusterenv.transport.shared import SharedArrays
from clusterenv.transport.weights import weights_layout
from clusterenv.wire.messages import MAX_NUMBER
from clusterenv.worker.actor import Attachment

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from gymnasium import Space

    from clusterenv.config import Timeouts
    from clusterenv.env.batch import Batch, Piece
    from clusterenv.env.engine import Engine
    from clusterenv.node.base import Incarnation
    from clusterenv.policy.protocol import Distribution, Runtime
    from clusterenv.spaces import Leaf
    from clusterenv.sync.codec import Decoded
    from clusterenv.sync.rules import Decider, Rule
    from clusterenv.worker.actor import Fragment


@dataclass(slots=True)
class _Copy:
    """The policy on one host: what it holds, how far that has drifted, and the rule that decides.

    Attributes:
        host: its index.
        workers: of the host.
        decider: its rule.
        drift: of its workers.
        held: the weights that it was given last.
        life: changes when the host has lost them.
        sync_bytes: how many bytes the last sync took.
    """

    host: int
    workers: range
    decider: Decider
    drift: Drift
    held: Decoded | None = None
    life: Incarnation = (0, 0)
    sync_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """How a policy is attached.

    Attributes:
        sync: when weights move.
        encoding: how they travel.
        seed: of the slots' random streams; None for a fresh one.
        runtime: what runs the policy on the workers.
        deterministic: act by the mode of the distribution.
        measure: estimate the drift even if the rule does not look at it.
        epoch: of the versions, at least.
        every_state: whether workers record the recurrent state before every step.
    """

    sync: Rule
    encoding: str
    seed: int | None
    runtime: str
    deterministic: bool
    measure: bool
    epoch: int
    every_state: bool


class Detached:
    """The head's side of an attached policy.

    Args:
        engine: of the batch of environments.
        timeouts: of the same.
        observation_space: of one slot.
        action_space: of one slot.
        policy: the user's object.
        options: how it is attached.
    """

    def __init__(
        self,
        engine: Engine,
        timeouts: Timeouts,
        observation_space: Space[Any],
        action_space: Space[Any],
        policy: Any,
        options: AttachOptions,
    ) -> None:
        self._leaves = _leaves_of(observation_space)
        self.engine, self.observation_space, self._action_space = engine, observation_space, action_space
        self._timeouts, self._every_state = timeouts, options.every_state
        first = Version(max(engine.node.epoch, whole_number("epoch", options.epoch, least=0, most=MAX_NUMBER)), 0)
        seed = secrets.randbits(63) if options.seed is None else whole_number("seed", options.seed, least=0)
        self._policy = as_policy(policy, observation_space, action_space, options.runtime)
        check_slots(self._policy.distribution, engine.arena.spec.num_envs)
        _check_distribution(self._policy.distribution)
        weights = self._policy.weights()
        self._spec = WeightSpec.of(weights)
        self._spec.check(weights)
        self._once = EncodeOnce(self._spec, options.encoding)
        self._memory = SharedArrays.create(weights_layout(self._spec))
        self.tally = Tally()
        built = self._policy.build()
        name = type(getattr(self._policy, "source", self._policy)).__name__
        self._copies = self._first_copies(options.sync, getattr(self._policy, "on_head", built.make), name)
        self._copy_of = [copy for copy in self._copies for _ in copy.workers]
        self._drift_wanted = options.measure or self._copies[0].decider.threshold is not None
        self._batches = 0
        attachment = Attachment(
            built,
            self._policy.distribution,
            self._policy.state,
            self._spec,
            seed,
            name,
            deterministic=options.deterministic,
        )
        engine.node.check_attachable(attachment)
        self.players = Players(engine, timeouts, attachment, self._memory)
        self._once.offer(first, self._spec.flatten(weights))
        self._consider(request=False)

    def _first_copies(self, sync: Rule, make_runtime: Callable[[], Runtime], name: str) -> list[_Copy]:
        def drift_of(workers: range) -> Drift:
            return Drift(
                len(workers),
                self._policy.distribution,
                self._spec,
                make_runtime,
                observation_size=sum(math.prod(leaf.shape) for leaf in self._leaves),
                divergence=getattr(sync, "divergence", "auto"),  # only `APS` says what it compares
                name=name,
            )

        return [
            _Copy(host, workers, sync.start(len(workers)), drift_of(workers))
            for host, workers in enumerate(self.engine.node.hosts)
        ]

    @property
    def newest(self) -> Version:
        """The newest version; its weights are there."""
        return self._once.version

    @property
    def divergence(self) -> npt.NDArray[np.float64]:
        """[workers], the last measurement of each, from before weights moved because of it; NaN if there is none."""
        if len(self._copies) == 1:
            return self._copies[0].drift.measured
        return np.concatenate([copy.drift.measured for copy in self._copies])

    def fragment_spec(self, steps: int, buffers: int) -> FragmentSpec:
        """The memory that fragments of this policy take."""
        distribution = self._policy.distribution
        return FragmentSpec(
            buffers,
            steps,
            self.engine.arena.spec.num_envs,
            len(self.engine.node.blocks),
            self._leaves,
            self._policy.state,
            distribution.action,
            distribution.size,
            self._policy.has_value,
            every_state=self._every_state,
        )

    def publish(self, policy: Any) -> Version:
        """If the weights have changed, a new version exists. They move if the node's rule asks for them."""
        began_s = time.monotonic()
        weights = self._weights_of(policy)
        self._spec.check(weights)
        flat = self._spec.flatten(weights)
        if not self._once.same(flat):  # else a worker would seem to lag behind the very weights that it acts with
            self._once.offer(self.newest.next(), flat)
            self.tally.published(self.newest.number, began_s)
        self._measure()
        self._consider(request=False)
        return self.newest

    def sync(self) -> None:
        """Move the newest weights now, whatever the rule says."""
        for copy in self._copies:
            copy.decider.force()
        self._consider(request=False)

    def catch_up(self) -> None:
        """Workers were just given the policy: now their hosts can take weights that they should have by now."""
        self.engine.node.wait_taken(self._timeouts.call_s)
        self._consider(request=False)

    def before_request(self) -> None:
        """Steps are about to be asked of the workers."""
        self._consider(request=True)

    def before_lock_step(self) -> None:
        """The same, and whoever is still taking an older version is waited for: all shall play with the newest."""
        self.engine.node.wait_taken(self._timeouts.call_s)
        self._consider(request=True)

    def arrived(self, piece: Piece, fragment: Fragment) -> None:
        """A fragment has come back: it tells about the worker's observations and actions."""
        self.tally.fragment(piece.worker, fragment)
        self.tally.applied(int(piece.columns.version[-1, 0]), time.monotonic())
        if self._drift_wanted:
            copy = self._copy_of[piece.worker]
            copy.drift.observe(piece.worker - copy.workers.start, piece.columns, self.newest.epoch, piece.slots)

    def handed_over(self, batch: Batch) -> None:
        """A batch goes to the learner."""
        self.tally.batch(batch)
        self._batches += 1

    def stats(self) -> dict[str, Any]:
        """Everything that was counted, as a plain dict."""
        held = [None if copy.held is None else tuple(copy.held.version) for copy in self._copies]
        return {
            **self.tally.summary(),
            "version": tuple(self.newest),
            # Of the host that is furthest behind.
            "held": None if None in held else min(version for version in held if version is not None),
            "threshold": self._copies[0].decider.threshold,
            "hosts": len(self.engine.node.hosts),
            "workers_ready": self.engine.workers_ready,
            "restarts": self.players.restarts,
            "straggler_ratio": self.tally.straggler_ratio(filter(self.engine.node.alive, self.players.everybody)),
            "network_bytes": self.engine.node.network_bytes._asdict(),
        }

    def close(self) -> None:
        """Let the memory go."""
        self.players.close()
        self._memory.close()

    def _weights_of(self, policy: Any) -> dict[str, Any]:
        """The weights of the published object, usually the attached one, whose weights have changed."""
        if policy is None or policy is getattr(self._policy, "source", self._policy):
            return self._policy.weights()
        if isinstance(policy, Policy):
            return policy.weights()
        # All of its tensors: no graph is made of it, which would take seconds, to find those that acting needs.
        weights = as_policy(policy, self.observation_space, self._action_space, "torch").weights()
        unused: frozenset[str] = getattr(self._policy, "unused", frozenset())
        return {name: weight for name, weight in weights.items() if name not in unused}

    def _measure(self) -> None:
        """Estimate how far the workers are from the newest policy, if somebody looks at that."""
        if not self._drift_wanted:
            return
        with self.tally.time("estimate"):
            for copy in self._copies:
                threshold = copy.decider.threshold
                if copy.held is not None and copy.drift.update(self._once.target(), copy.held, threshold):
                    self.tally.measured(copy.drift.measured, copy.drift.ess)

    def _consider(self, *, request: bool) -> None:
        """Ask the rule of every host that is free to take weights."""
        node = self.engine.node
        for copy in self._copies:
            if copy.life != node.host_life(copy.host):
                copy.life, copy.held = node.host_life(copy.host), None
            if not node.may_give(copy.host, self._memory):
                continue
            reason = copy.decider.consider(
                Situation(
                    held=None if copy.held is None else copy.held.version,
                    newest=self.newest,
                    divergence=copy.drift.divergence,
                    ess=copy.drift.ess,
                    now_s=time.monotonic(),
                    batches=self._batches,
                    sync_bytes=copy.sync_bytes,
                    request=request,
                )
            )
            if reason is not None:
                self._move(copy, reason)

    def _move(self, copy: _Copy, reason: Reason) -> None:
        """One sync: encode, and let the host have them."""
        with self.tally.time("encode"):
            encoded = self._once.encode(copy.held)
            decoded = self._once.target()  # by the hash that travels with them: a host that decodes others refuses them
            self.engine.node.give(copy.host, self._memory, encoded, decoded)
            copy.held = decoded  # last: after an interrupt the workers hold this, or what they held before
        copy.sync_bytes = encoded.nbytes
        self.tally.sync(reason.value, encoded.kind, encoded.nbytes)
        copy.decider.synced(copy.held.version, reason, now_s=time.monotonic(), nbytes=encoded.nbytes)
        if self._drift_wanted:
            with self.tally.time("estimate"):
                copy.drift.rebase(copy.held)


def _leaves_of(observation_space: Space[Any]) -> tuple[Leaf, ...]:
    leaves = leaves_of(observation_space)
    if leaves is None:
        raise ConfigError(
            f"a policy on workers needs observations of fixed size, but the space is {observation_space}. "
            "Use step(actions), or a wrapper that turns observations into arrays."
        )
    return tuple(leaves)


def _check_distribution(distribution: Distribution) -> None:
    """Act once, so that actions of the wrong kind are refused here: in the memory of a batch they would be cut."""
    params = np.zeros((2, distribution.size), np.float32)
    leaf = distribution.action
    try:
        distribution = at_slots(distribution, [0, 0])
        drawn = distribution.sample(params, np.zeros((2, distribution.draws), np.float32))
        results = {"sample": np.asarray(drawn), "mode": np.asarray(distribution.mode(params))}
    except Exception as error:  # the user's code
        raise ConfigError(f"{distribution} raised when it sampled: {named(error)}.") from error
    for name, actions in results.items():
        if actions.shape != (2, *leaf.shape) or actions.dtype != leaf.dtype:
            raise ConfigError(
                f"{distribution}.{name} made two actions as an array of {actions.dtype} {actions.shape}, but its "
                f"`action` promises {leaf.dtype} {(2, *leaf.shape)}. Make the two agree."
            )
    _check_log_prob(distribution, np.stack([params] * 3), np.stack([results["mode"]] * 3))


def _check_log_prob(distribution: Distribution, params: npt.NDArray[Any], actions: npt.NDArray[Any]) -> None:
    """Ask for three steps of two slots at once, as workers do for a fragment: a wrong shape may fit by broadcasting."""
    try:
        shape = np.shape(distribution.log_prob(params, actions))
    except Exception as error:  # the user's code
        raise ConfigError(
            f"{distribution}.log_prob raised for params {params.shape} and actions {actions.shape}: {named(error)}. "
            "It must take any leading shape: [steps, slots, P] as well as [slots, P]."
        ) from error
    if shape != params.shape[:-1]:
        raise ConfigError(
            f"{distribution}.log_prob gave shape {shape} for params {params.shape}, where {params.shape[:-1]} is "
            "expected: one number for each action, whatever the leading shape."
        )
