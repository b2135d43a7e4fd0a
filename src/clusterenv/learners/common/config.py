"""The settings that all learners share: frozen, checked once, with the reason when they do not fit together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from clusterenv.clusters import Remote
from clusterenv.config import Timeouts, check_num_envs, parse_cluster
from clusterenv.errors import ConfigError
from clusterenv.learners.common.env_args import parse_env_args
from clusterenv.learners.common.settings import fit
from clusterenv.learners.common.sync import SyncConfig
from clusterenv.learners.common.tasks import Task, title_of

if TYPE_CHECKING:
    from collections.abc import Callable

# More threads than any machine has cores are taken for a typing error: they would end the process.
MOST_THREADS = 1024

Mode = Literal["lock step", "stream"]
RewardTransform = Literal["none", "clip", "sign", "soft asymmetric", "optimistic asymmetric"]


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """What every learner asks: which environments, where, how long, and how workers get weights.

    Attributes:
        aps_threshold: how far workers may drift under APS if nothing else is said. It depends on what the learner does
            with data of an older policy.
        aps_stall_after: under APS, the batches after which weights move because the learner is held back. That
            matters to learners that old data holds back, by a trust region around the policy that acted; None is for
            the others.
        judged_greedily: whether what was learned is judged without exploring, as that is no part of it.
    """

    aps_threshold: ClassVar[float] = 0.01
    aps_stall_after: ClassVar[int | None] = 4
    judged_greedily: ClassVar[bool] = False

    env_id: str = "CartPole-v1"
    """the environment"""
    env_args: tuple[str, ...] = ()
    """arguments of the environment, such as game=Pong delay=20 episodic_life=false"""
    cluster: str = "local:2"
    """where the environments run, and the policy beside them"""
    num_envs: int = 32
    """number of environments (slots)"""
    seed: int = 1
    """seed of the network, the sampled actions and the environments"""
    total_steps: int = 200_000
    """step budget, over all environments"""
    target_return: float | None = None
    """stop early, when the mean return of the last 100 episodes reaches this"""

    on_loss: Literal["restart", "shrink", "raise"] = "restart"
    """when a worker is lost or an environment raises. restart: go on in fresh ones; shrink: the same, but a stream goes
    on with fewer workers where no other can be had; raise: the run ends"""
    min_nodes: int = 1
    """stream: with fewer nodes the learner waits, as long as wait_s of the cluster allows"""
    timeouts: Timeouts = field(default_factory=Timeouts)
    """how long something may take before it counts as lost"""

    mode: Mode = "lock step"
    """lock step: workers wait while the learner learns; stream: nobody waits, data may be stale"""
    rollout_steps: int = 64
    """steps of each environment in a batch"""
    stream_slots: int | None = None
    """stream: environments in a batch; half of them if it is not given"""
    stream_buffers: int = 2
    """stream: fragments that a worker may be ahead; more keep it busy, and make the data older"""
    sync: SyncConfig = field(default_factory=SyncConfig)
    """when workers fetch new weights"""
    encoding: Literal["fp32", "bf16", "bf16-delta"] = "bf16-delta"
    """how weights travel"""
    runtime: Literal["auto", "onnx", "torch"] = "auto"
    """what runs the policy on the workers"""
    inference: Literal["worker", "head"] = "worker"
    """who runs the policy. worker: each for its own environments; head: the learner's device, for all of them"""
    inference_batch: int | None = None
    """head: environments in an inference batch; half of them if it is not given, so that the other half steps"""
    inference_wait_ms: float = 5.0
    """head: how long the first of a batch waits for the others before it is run without them"""
    cuda_graphs: Literal["auto", "on", "off"] = "auto"
    """on a GPU: run updates, and the head's inference, as CUDA graphs; auto: where they can be, and inference where
    that is faster, which is measured at the start"""
    measure_drift: bool = False
    """estimate how far the workers' policy has drifted even if the sync rule does not ask, to compare rules"""

    learning_rate: float = 1e-3
    """of the optimiser"""
    anneal: bool = True
    """let the learning rate fall to zero over the step budget"""
    gamma: float = 0.99
    """discount"""
    max_grad_norm: float = 0.5
    """a longer gradient is cut to this"""
    normalize_observations: bool = False
    """normalise observations by their running mean and variance"""
    reward: RewardTransform = "none"
    """what the learner makes of rewards; returns are told as they are"""
    reward_scale: float = 1.0
    """rewards are multiplied by this for the learner, so that returns of any size fit the learning rate"""
    hidden: tuple[int, ...] | None = None
    """sizes of the hidden layers; None for those that are usual"""

    record_every: int = 1
    """updates between two rows of metrics"""
    checkpoint_every_s: float = 60.0
    """seconds between checkpoints, where they are kept"""
    device: str = "cpu"
    """where the learner computes, for torch"""
    torch_threads: int = 1
    """threads of the learner; the other cores are for the workers"""

    def __post_init__(self) -> None:
        fit(self)
        check_num_envs(self.num_envs)
        parse_env_args(self.env_args)
        parse_cluster(self.cluster)
        for name in ("total_steps", "rollout_steps", "stream_buffers", "record_every"):
            check(name, getattr(self, name), least=1)
        check("torch_threads", self.torch_threads, least=1, most=MOST_THREADS)
        check("gamma", self.gamma, least=0, most=1)
        check("seed", self.seed, least=0)
        for name in ("learning_rate", "max_grad_norm", "checkpoint_every_s", "reward_scale"):
            check(name, getattr(self, name), above=0)
        if self.target_return is not None:
            check("target_return", self.target_return)
        if any(size < 1 for size in self.hidden or ()):
            raise ConfigError(f"hidden={self.hidden} must be sizes of at least 1, such as (64, 64).")
        self._check_batch()
        self._check_inference()
        self._check_elastic()

    @property
    def inference_rows(self) -> int:
        """Environments in an inference batch on the head."""
        return max(1, self.num_envs // 2) if self.inference_batch is None else self.inference_batch

    @property
    def batch_slots(self) -> int:
        """Environments in one batch."""
        if self.mode == "lock step":
            return self.num_envs
        return max(1, self.num_envs // 2) if self.stream_slots is None else self.stream_slots

    @property
    def batch_size(self) -> int:
        """Transitions in one batch."""
        return self.rollout_steps * self.batch_slots

    def for_playing(self) -> LearnerConfig:
        """The same for somebody who only plays: what is needed to learn takes no room."""
        return self

    def scored_slots(self) -> range:
        """The slots whose returns tell how good the policy is; not those that explore for the others."""
        return range(self.num_envs)

    def env_kwargs(self) -> dict[str, Any]:
        """The arguments of the environment."""
        return parse_env_args(self.env_args)

    def wrappers(self) -> tuple[Callable[[Any], Any], ...]:
        """What is put around each environment, on its worker."""
        return ()

    def all_tasks(self) -> tuple[Task, ...]:
        """What the slots play, in turn: one task, unless a learner takes several."""
        return (Task(self.env_id, self.env_id, self.env_kwargs(), self.wrappers()),)

    @property
    def title(self) -> str:
        """What is played, for people and for the names of folders."""
        return title_of(self.all_tasks())

    def _check_inference(self) -> None:
        check("inference_wait_ms", self.inference_wait_ms, least=0, most=60_000)
        if self.inference == "head" and self.mode != "stream":
            raise ConfigError(
                f"inference='head' with mode={self.mode!r}: on the head the policy acts while the learner learns. "
                "Use mode='stream', or inference='worker'."
            )
        if self.inference == "head" and (self.sync != SyncConfig() or self.measure_drift):
            raise ConfigError(
                f"inference='head' with {self.sync} and measure_drift={self.measure_drift}: no weights move then, and "
                "nothing drifts. Leave them out, or use inference='worker'."
            )
        if self.inference_batch is not None and self.inference != "head":
            raise ConfigError(
                f"inference_batch={self.inference_batch} means nothing with inference='worker', where each worker acts "
                "for its own environments. Leave it out, or use inference='head'."
            )
        if not 1 <= self.inference_rows <= self.num_envs:
            raise ConfigError(f"inference_batch={self.inference_batch} must be from 1 to num_envs={self.num_envs}.")

    def _check_elastic(self) -> None:
        """Refuse what only a stream of the workers can do: whoever asks for each slot needs each worker."""
        check("min_nodes", self.min_nodes, least=1)
        streams = self.mode == "stream" and self.inference == "worker"
        for name, meant in (("on_loss", self.on_loss == "shrink"), ("min_nodes", self.min_nodes > 1)):
            if meant and not streams:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} with mode={self.mode!r} and inference={self.inference!r}: only a "
                    f"stream whose policy acts on the workers can go on without some of them. Leave {name} out, or use "
                    "mode='stream' with inference='worker'."
                )
        cluster = parse_cluster(self.cluster)
        nodes = cluster.nodes if isinstance(cluster, Remote) else 1
        if self.min_nodes > nodes:
            raise ConfigError(
                f"min_nodes={self.min_nodes} must be at most {nodes}, the number of nodes of "
                f"cluster={self.cluster!r}: more will never be there."
            )

    def _check_batch(self) -> None:
        if self.stream_slots is not None and self.mode != "stream":
            raise ConfigError(
                f"stream_slots={self.stream_slots} means nothing in lock step, where a batch has all the environments. "
                "Leave it out (where a file has it, set it to None), or use mode='stream'."
            )
        if not 1 <= self.batch_slots <= self.num_envs:
            raise ConfigError(f"stream_slots={self.stream_slots} must be from 1 to num_envs={self.num_envs}.")
        if self.total_steps < self.batch_size:
            raise ConfigError(
                f"total_steps={self.total_steps} is less than one batch of {self.batch_size} transitions "
                f"(rollout_steps={self.rollout_steps} x {self.batch_slots} slots): nothing would be learned. "
                "Raise total_steps or lower the other two."
            )


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(LearnerConfig):
    """The settings of learners with a policy and a value that learn side by side."""

    anneal: bool = True
    """let the learning rate and the entropy bonus fall to zero over the step budget"""
    entropy_coef: float = 0.01
    """weight of the entropy bonus"""
    value_coef: float = 0.5
    """weight of the value loss"""
    first_spread: float = 1.0
    """standard deviation of continuous actions at the start; a smaller one explores less, and acts better sooner"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("entropy_coef", "value_coef"):
            check(name, getattr(self, name), least=0)
        check("first_spread", self.first_spread, above=0)


@dataclass(frozen=True, kw_only=True)
class UnrollConfig(ActorCriticConfig):
    """The settings of learners that take whole unrolls, so that their networks may have a memory."""

    body: Literal["mlp", "shallow", "deep", "nature"] = "mlp"
    """what looks at an observation: dense layers, or for images the small or the deep network of IMPALA, or DQN's"""
    lstm: int = 0
    """size of an LSTM behind it; 0 for none"""
    last_inputs: bool = False
    """show the policy its last action and reward too, beside the observation"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check("lstm", self.lstm, least=0)

    def wrappers(self) -> tuple[Callable[[Any], Any], ...]:
        """What is put around each environment, on its worker."""
        return input_wrappers(self.last_inputs)


@dataclass(frozen=True, kw_only=True)
class VTraceConfig(UnrollConfig):
    """The settings of learners on a stream of unrolls, whose targets and advantages V-trace corrects."""

    # Some batches are under way whenever weights move, so that the first ones after it are still of the policy before.
    # With 4, IMPACT fetched nearly twice the bytes on CartPole, and learned no faster.
    aps_stall_after: ClassVar[int | None] = 16

    mode: Mode = "stream"
    """stream: nobody waits, data may be stale; lock step: workers wait while the learner learns"""
    rollout_steps: int = 20
    """steps of each environment in a batch"""
    learning_rate: float = 2e-3
    """of the optimiser"""
    max_grad_norm: float = 40.0
    """a longer gradient is cut to this"""
    record_every: int = 20
    """updates between two rows of metrics"""

    rho_bar: float = 1.0
    """importance ratios above this are cut in the targets and advantages"""
    c_bar: float = 1.0
    """importance ratios above this are cut in the trace; a little more than 1 keeps long traces of nearly fresh data"""
    vtrace_lambda: float = 1.0
    """shortens the trace as in generalised advantage estimation; 1 as published"""
    publish_every: int = 1
    """updates between two versions"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check("vtrace_lambda", self.vtrace_lambda, least=0, most=1)
        check("publish_every", self.publish_every, least=1)
        for name in ("rho_bar", "c_bar"):
            check(name, getattr(self, name), above=0)
        if self.rho_bar < self.c_bar:
            raise ConfigError(
                f"rho_bar={self.rho_bar} is less than c_bar={self.c_bar}: then values would travel back further than "
                "they are weighed, and V-trace is not known to converge. Raise the one or lower the other."
            )


def input_wrappers(last_inputs: bool) -> tuple[Callable[[Any], Any], ...]:
    """What shows a policy its last action and reward, if it is to see them."""
    if not last_inputs:
        return ()
    from clusterenv.wrappers import LastActionReward  # it needs Gymnasium, which `--help` does not

    return (LastActionReward,)


def check(
    name: str, value: float, *, least: float | None = None, above: float | None = None, most: float | None = None
) -> None:
    """Refuse a number that lies outside.

    Raises:
        ConfigError: with the name, the value and the limit.

    Example:
        >>> check("gamma", 0.99, least=0, most=1)
        >>> check("gamma", 1.5, least=0, most=1)
        Traceback (most recent call last):
        clusterenv.errors.ConfigError: gamma=1.5 must be at most 1.
    """
    rules = {
        f"at least {least}": least is None or value >= least,
        f"more than {above}": above is None or value > above,
        f"at most {most}": most is None or value <= most,
        "finite": math.isfinite(value),
    }
    for rule, holds in rules.items():
        if not holds:
            raise ConfigError(f"{name}={value!r} must be {rule}.")
