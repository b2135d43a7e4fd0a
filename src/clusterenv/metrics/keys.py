"""The name of everything that is measured, with its unit and a sentence.

The names are CleanRL's where it has one, so that the plots people own go on working. The x-axis is `global_step`:
environment steps summed over all workers. "Interval" means since the last time the metric was written.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterenv.errors import ConfigError, unknown


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is measured.

    Attributes:
        name: as it appears in files and plots.
        unit: of the number.
        sentence: what the number means.
    """

    name: str
    unit: str
    sentence: str


EPISODIC_RETURN = Metric(
    "charts/episodic_return", "reward", "Mean return of the last 100 finished episodes, over all slots that count."
)
EPISODIC_LENGTH = Metric("charts/episodic_length", "steps", "Mean length of the last 100 finished episodes.")
EPISODES = Metric("charts/episodes", "episodes", "Episodes finished since the run began.")
SPS = Metric("charts/SPS", "steps/s", "Environment steps per second over the interval, all workers together.")
LEARNING_RATE = Metric("charts/learning_rate", "1", "The optimiser's learning rate.")

POLICY_LOSS = Metric(
    "losses/policy_loss",
    "1",
    "The policy's objective with its sign turned, mean over transitions; V-MPO: by weights that sum to 1.",
)
VALUE_LOSS = Metric(
    "losses/value_loss",
    "reward^2",
    "Half the mean squared error of the critic; SAC: the sum of both Q functions'; V-MPO with PopArt: on the scale of "
    "the normalised targets.",
)
ENTROPY = Metric("losses/entropy", "nats", "Mean entropy of the learner's action distribution.")
APPROX_KL = Metric(
    "losses/approx_kl",
    "nats",
    "Estimated KL from the policy that acted to the learner's, in the last pass over the batch; V-MPO: the exact one.",
)
CLIPFRAC = Metric("losses/clipfrac", "0-1", "Share of transitions whose probability ratio lies outside the clip range.")
LOG_RATIO = Metric(
    "losses/abs_log_ratio", "nats", "Mean size of the log-ratio of the learner's policy to the one that acted."
)
RHO_CLIPPED = Metric(
    "losses/rho_clipped",
    "0-1",
    "Share of transitions whose ratio of learner to actor is above rho_bar, where IMPALA's V-trace cuts it; IMPACT's "
    "V-trace cuts the ratio of target network to actor there.",
)
TARGET_KL = Metric("losses/target_kl", "nats", "Mean KL from the target network's policy to the learner's.")
REUSE = Metric("losses/reuse", "uses", "How often the batch had been learned from, with this time.")
DROPPED = Metric(
    "losses/dropped_uses",
    "uses",
    "Uses of batches that were left when a newer batch took their place: all since the run began or was resumed.",
)
EXPLAINED_VARIANCE = Metric(
    "losses/explained_variance",
    "<= 1",
    "Share of the variance of the value targets that the critic explained. The targets are "
    "mostly the critic's own values, so it may be near 1 while the critic is wrong.",
)
GRAD_NORM = Metric(
    "losses/grad_norm",
    "1",
    "Norm of the gradient of the whole network before it was cut; parts that share nothing are cut one by one.",
)
KL_SPREAD = Metric(
    "losses/kl_spread", "nats", "V-MPO: KL of the spread of continuous actions; approx_kl is the mean's."
)
PSI_KL = Metric("losses/psi_kl", "nats", "V-MPO: how far the weights of the chosen transitions are from equal ones.")
TEMPERATURE = Metric(
    "losses/temperature", "reward", "V-MPO: the temperature of these weights; SAC: what a nat of entropy is worth."
)
KL_MULTIPLIER = Metric("losses/kl_multiplier", "1", "V-MPO: the weight of the trust region.")
KL_MULTIPLIER_SPREAD = Metric(
    "losses/kl_multiplier_spread", "1", "V-MPO: the same, of the spread of continuous actions."
)

TD_LOSS = Metric(
    "losses/td_loss",
    "reward^2",
    "Half the squared error of the Q-values, mean over the sample by its weights; R2D2: summed over the steps of each "
    "sequence, on its squashed scale.",
)
TD_ERROR = Metric("losses/td_error", "reward", "Mean size of the error of the Q-values; priorities are made of it.")
Q_MEAN = Metric("losses/q_mean", "reward", "Mean of what the Q functions say of the actions that were taken.")
REPLAY_SIZE = Metric("replay/size", "items", "Items in the memory that can be sampled.")
REPLAY_RATIO = Metric(
    "replay/samples_per_insert", "1", "Samples for each item that went in after the first, since the run began."
)
REPLAY_FULL = Metric(
    "replay/insertions_wait", "0-1", "Share of updates at which new steps had to wait, since the learner was behind."
)

POLICY_LAG_MIN = Metric(
    "sync/policy_lag_min", "versions", "Smallest gap between the head's version and the acting one."
)
POLICY_LAG_MEAN = Metric("sync/policy_lag_mean", "versions", "Mean gap over the transitions of the last batch.")
POLICY_LAG_MAX = Metric("sync/policy_lag_max", "versions", "Largest gap over the transitions of the last batch.")
DIVERGENCE_MEAN = Metric(
    "sync/divergence_mean",
    "nats",
    "How far the workers' policies were from the newest one: mean over workers and over the measurements of the "
    "interval, each at a publish and before weights moved because of it; missing if there were none.",
)
DIVERGENCE_MAX = Metric("sync/divergence_max", "nats", "The same, for the worker that is furthest away.")
SYNC_COUNT = Metric("sync/count", "syncs", "How often weights moved to a node and its workers in the interval.")
SYNC_BYTES = Metric("sync/bytes", "bytes", "Bytes of weights that moved in the interval.")
SYNC_SKIPPED = Metric(
    "sync/skipped", "versions", "How often a version did not move to a node: older weights were good enough there."
)
SYNC_PUBLISHES = Metric("sync/publishes", "versions", "Versions that the learner published in the interval.")
SYNC_SAVED = Metric(
    "sync/saved_fraction",
    "0-1",
    "Share of bytes saved since the run began or was resumed, against sending all weights at every version.",
)
PUBLISH_TO_APPLY_P50 = Metric(
    "sync/publish_to_apply_ms_p50",
    "ms",
    "From publish() to the arrival of the first fragment that was played, at least at its end, with that version or a "
    "newer one: the median of the last 1,000 versions for which one has arrived; with the policy on workers.",
)
PUBLISH_TO_APPLY_P99 = Metric("sync/publish_to_apply_ms_p99", "ms", "The same: one version in a hundred takes longer.")

RESTARTS = Metric(
    "cluster/restarts", "workers", "Workers that were lost and started afresh since the run began or was resumed."
)
WORKERS_READY = Metric("cluster/workers_ready", "workers", "Workers that are alive.")
WORKERS = Metric("cluster/workers", "workers", "Workers that the run asked for.")
LEARNER_WAIT = Metric("cluster/learner_wait_fraction", "0-1", "Share of the interval that the learner waited for data.")
WORKER_WAIT = Metric(
    "cluster/worker_wait_fraction", "0-1", "Share of the workers' time in which they waited for the learner."
)
STEP_P50 = Metric(
    "cluster/step_ms_p50",
    "ms",
    "A step of all environments of a worker, with its policy: the median of the last 1,000 fragments, of each the mean "
    "of its steps; with the policy on workers.",
)
STEP_P99 = Metric("cluster/step_ms_p99", "ms", "The same: one fragment in a hundred has slower steps.")
STRAGGLER_RATIO = Metric(
    "cluster/straggler_ratio",
    ">= 1",
    "Step time of the slowest worker over that of the one in the middle, by the last fragment of each that is alive.",
)
BYTES_IN = Metric(
    "cluster/bytes_in",
    "bytes/s",
    "Messages from nodes on other hosts over the interval, without what sockets and encryption add; 0 on one host.",
)
BYTES_OUT = Metric("cluster/bytes_out", "bytes/s", "The same, to nodes on other hosts: actions, orders and weights.")

INFERENCE_BATCH = Metric("inference/batch_size", "rows", "Mean size of the inference batches of the interval.")
INFERENCE_FULL = Metric("inference/full_fraction", "0-1", "Share of the interval's inference batches that were full.")
INFERENCE_P50 = Metric(
    "inference/latency_p50_ms", "ms", "From the environments' answers to the next actions, on the head: the median."
)
INFERENCE_P99 = Metric("inference/latency_p99_ms", "ms", "The same: one inference batch in a hundred takes longer.")

METRICS: dict[str, Metric] = {value.name: value for value in list(globals().values()) if isinstance(value, Metric)}

# Why syncs happened is a count per reason, and rules may add reasons: the names share a beginning. So with tasks.
REASON_PREFIX = "sync/reason/"
TASK_RETURN_PREFIX = "charts/episodic_return/"
TASK_WEIGHT_PREFIX = "losses/task_weight/"


_FAMILIES = {
    REASON_PREFIX: ("syncs", "Syncs in the interval whose reason was"),
    TASK_RETURN_PREFIX: ("reward", "Mean return of the last 100 finished episodes of the task"),
    TASK_WEIGHT_PREFIX: ("0-1", "V-MPO: share of the weights of the chosen transitions that belongs to the task"),
}


def find(name: str) -> Metric:
    """The metric of this name.

    Raises:
        ConfigError: there is none; the message names the nearest.

    Example:
        >>> find("charts/SPS").unit
        'steps/s'
        >>> find("sync/reason/divergence").sentence
        "Syncs in the interval whose reason was 'divergence'."
    """
    for prefix, (unit, sentence) in _FAMILIES.items():
        if name.startswith(prefix):
            return Metric(name, unit, f"{sentence} {name[len(prefix) :]!r}.")
    if name not in METRICS:
        raise ConfigError(unknown("metric", name, METRICS))
    return METRICS[name]
