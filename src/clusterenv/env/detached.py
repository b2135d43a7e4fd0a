"""A policy that acts on the workers: its versions, when weights move, and what is known about its drift.

The life of a version: `publish` flattens the weights and gives them a number. The estimator compares the new policy
with the one that the node holds, on observations that the workers sent. The node's rule decides. If it asks, the
weights are encoded once, decoded as the node decodes them, and put where its workers find them.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from clusterenv.env.drift import Drift
from clusterenv.env.players import Players
from clusterenv.env.tally import Tally
from clusterenv.errors import ConfigError, words_of
from clusterenv.policy.adapters import as_policy
from clusterenv.policy.base import whole_number
from clusterenv.policy.protocol import Policy
from clusterenv.spaces import leaves_of
from clusterenv.sync.codec import EncodeOnce, decode
from clusterenv.sync.rules import Reason, Situation
from clusterenv.sync.versions import Version
from clusterenv.sync.weights import WeightSpec
from clusterenv.transport.fragments import FragmentSpec
from clusterenv.transport.shared import SharedArrays
from clusterenv.transport.weights import WeightBuffer, weights_layout
from clusterenv.worker.actor import Attachment

if TYPE_CHECKING:
    import numpy.typing as npt
    from gymnasium import Space

    from clusterenv.config import Timeouts
    from clusterenv.env.batch import Batch, Piece
    from clusterenv.env.engine import Engine
    from clusterenv.policy.protocol import Distribution
    from clusterenv.sync.codec import Decoded
    from clusterenv.sync.rules import Rule
    from clusterenv.worker.actor import Fragment


class Detached:
    """The head's side of an attached policy.

    Args:
        engine: of the batch of environments.
        timeouts: of the same.
        observation_space: of one slot.
        action_space: of one slot.
        policy: the user's object.
        sync: when weights move.
        encoding: how they travel.
        seed: of the slots' random streams; None for a fresh one.
        runtime: what runs the policy on the workers.
        deterministic: act by the mode of the distribution.
        measure: estimate the drift even if the rule does not look at it.
    """

    def __init__(
        self,
        engine: Engine,
        timeouts: Timeouts,
        observation_space: Space[Any],
        action_space: Space[Any],
        policy: Any,
        *,
        sync: Rule,
        encoding: str,
        seed: int | None,
        runtime: str,
        deterministic: bool,
        measure: bool,
    ) -> None:
        leaves = leaves_of(observation_space)
        if leaves is None:
            raise ConfigError(
                f"a policy on workers needs observations of fixed size, but the space is {observation_space}. "
                "Use step(actions), or a wrapper that turns observations into arrays."
            )
        self.engine, self.observation_space, self._action_space = engine, observation_space, action_space
        self._runtime_name = runtime
        self._leaves = tuple(leaves)
        seed = secrets.randbits(63) if seed is None else whole_number("seed", seed, least=0)
        self._policy = as_policy(policy, observation_space, action_space, runtime)
        _check_distribution(self._policy.distribution)
        weights = self._policy.weights()
        self._spec = WeightSpec.of(weights)
        self._spec.check(weights)
        self._once = EncodeOnce(self._spec, encoding)
        self._buffer = WeightBuffer(SharedArrays.create(weights_layout(self._spec)))
        self._held: Decoded | None = None
        self.newest = Version(0, 0)
        self.tally = Tally()
        workers = len(engine.node.blocks)
        self._decider = sync.start(workers)
        built = self._policy.build()
        kind = getattr(sync, "divergence", "auto")
        name = type(getattr(self._policy, "source", self._policy)).__name__
        self._drift = Drift(workers, self._policy.distribution, self._spec, built.make, kind, name=name)
        self._measures = measure or self._decider.threshold is not None
        self._batches = self._sync_bytes = 0
        attachment = Attachment(
            built,
            self._policy.distribution,
            self._policy.state,
            self._spec,
            seed,
            name,
            deterministic=deterministic,
        )
        self.players = Players(engine, timeouts, attachment, self._buffer.memory)
        self._offer(weights)
        self._consider(request=False)

    @property
    def divergence(self) -> npt.NDArray[np.float64]:
        """[workers], the last estimate of each."""
        return self._drift.divergence

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
        )

    def publish(self, policy: Any) -> Version:
        """A new version exists. Its weights move if the node's rule asks for them."""
        weights = self._weights_of(policy)
        self._spec.check(weights)
        self.newest = self.newest.next()
        self._offer(weights)
        self.tally.publishes += 1
        self._measure()
        self._consider(request=False)
        return self.newest

    def sync(self) -> None:
        """Move the newest weights now, whatever the rule says."""
        self._decider.force()
        self._consider(request=False)

    def before_request(self) -> None:
        """Steps are about to be asked of the workers."""
        self._consider(request=True)

    def arrived(self, piece: Piece, fragment: Fragment) -> None:
        """A fragment has come back: it tells about the worker's observations and actions."""
        self.tally.fragment(fragment)
        if self._measures:
            self._drift.observe(piece.worker, piece.columns, self.newest.epoch)

    def handed_over(self, batch: Batch) -> None:
        """A batch goes to the learner."""
        self.tally.batch(batch)
        self._batches += 1

    def stats(self) -> dict[str, Any]:
        """Everything that was counted, as a plain dict."""
        held = None if self._held is None else tuple(self._held.version)
        return {
            **self.tally.summary(),
            "version": tuple(self.newest),
            "held": held,
            "threshold": self._decider.threshold,
            "restarts": self.players.restarts,
        }

    def close(self) -> None:
        """Let the memory go."""
        self.players.close()
        self._buffer.memory.close()

    def _weights_of(self, policy: Any) -> dict[str, Any]:
        """The weights of the published object, usually the attached one, whose weights have changed."""
        if policy is None or policy is getattr(self._policy, "source", self._policy):
            return self._policy.weights()
        if isinstance(policy, Policy):
            return policy.weights()
        return as_policy(policy, self.observation_space, self._action_space, "torch").weights()

    def _offer(self, weights: dict[str, Any]) -> None:
        self._once.offer(self.newest, self._spec.flatten(weights))

    def _measure(self) -> None:
        """Estimate how far the workers are from the newest policy, if somebody looks at that."""
        if not self._measures or self._held is None:
            return
        with self.tally.time("estimate"):
            if self._drift.update(self._once.target(), self._held, self._decider.threshold):
                self.tally.measured(self._drift.divergence, self._drift.ess)

    def _consider(self, *, request: bool) -> None:
        reason = self._decider.consider(
            Situation(
                held=None if self._held is None else self._held.version,
                newest=self.newest,
                divergence=self._drift.divergence,
                ess=self._drift.ess,
                now_s=time.monotonic(),
                batches=self._batches,
                sync_bytes=self._sync_bytes,
                request=request,
            )
        )
        if reason is not None:
            self._move(reason)

    def _move(self, reason: Reason) -> None:
        """One sync: encode, decode as the node does, and show the workers."""
        with self.tally.time("encode"):
            encoded = self._once.encode(self._held)
            decoded = decode(self._spec, encoded, self._held)
            self._buffer.put(decoded.version, decoded.flat)
            self._held = decoded  # last: after an interrupt the workers hold this, or what they held before
        self._sync_bytes = encoded.nbytes
        self.tally.sync(reason.value, encoded.kind, encoded.nbytes)
        self._decider.synced(self._held.version, reason, now_s=time.monotonic(), nbytes=encoded.nbytes)
        if self._measures:
            with self.tally.time("estimate"):
                self._drift.rebase(self._held)


def _check_distribution(distribution: Distribution) -> None:
    """Act once, so that actions of the wrong kind are refused here: in the memory of a batch they would be cut."""
    params = np.zeros((2, distribution.size), np.float32)
    leaf = distribution.action
    try:
        drawn, _ = distribution.sample_with_log_prob(params, np.zeros((2, distribution.draws), np.float32))
        results = {"sample_with_log_prob": np.asarray(drawn), "mode": np.asarray(distribution.mode(params))}
    except Exception as error:  # the user's code
        raise ConfigError(
            f"{distribution} raised when it sampled: {type(error).__name__}: {words_of(error)}."
        ) from error
    for name, actions in results.items():
        if actions.shape != (2, *leaf.shape) or actions.dtype != leaf.dtype:
            raise ConfigError(
                f"{distribution}.{name} made two actions as an array of {actions.dtype} {actions.shape}, but its "
                f"`action` promises {leaf.dtype} {(2, *leaf.shape)}. Make the two agree."
            )
