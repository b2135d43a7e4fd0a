"""What a user can set: where the workers run, how long we wait, what happens after a loss.

Frozen values, checked once, when they are made. Units are in the names.
"""

from __future__ import annotations

import enum
import math
import numbers
import os
import re
from dataclasses import dataclass, fields
from typing import Literal

from clusterenv.amounts import parse_bytes
from clusterenv.cgroups import cpu_limit
from clusterenv.clusters import KINDS, Remote, options_of, parse_remote, values_of
from clusterenv.errors import ConfigError, ConfigTypeError, unknown

# A worker is a process with its own interpreter, about 40 MB. More than this on one host is taken for a typing error.
MAX_WORKERS = 1024
# A batch of a million environments would need minutes to build; a larger number is taken for a typing error too.
MAX_ENVS = 1_000_000

CLUSTERS = ("inproc", "local", *KINDS)


class OnLoss(enum.Enum):
    """What happens when a worker is lost or an environment raises.

    RESTART: its slots come back truncated with `info["worker_lost"]`, then go on in fresh environments.
    SHRINK: the same; but a `stream` goes on with fewer workers where no other can be had, and takes back who comes.
    RAISE: the call raises `WorkerLost` or `EnvError`; `reset()` makes the batch whole again.
    """

    RESTART = "restart"
    SHRINK = "shrink"
    RAISE = "raise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long we wait before we call something lost, in seconds. `None` waits for ever and must be typed.

    Attributes:
        start_s: from the start of a worker until its environments are built.
        reset_s: one `reset()` of a whole block.
        step_s: one step of a whole block, with the resets of episodes that have ended: all of them after a loss.
        call_s: one `call`, `get_attr`, `set_attr` or `render`.
        close_s: for the environments to close by themselves before they are ended.
    """

    start_s: float | None = 60.0
    reset_s: float | None = 60.0
    step_s: float | None = 60.0
    call_s: float | None = 60.0
    close_s: float | None = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            seconds = check_seconds(f"timeouts.{field.name}", getattr(self, field.name))
            object.__setattr__(self, field.name, seconds)  # NumPy's numbers become Python's


def check_seconds(name: str, value: object, *, none: str = "to wait for ever") -> float | None:
    """Return `value` if it is a usable limit in seconds, or None; raise ConfigError if not.

    `none` tells the user what None means.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigTypeError(f"{name}={value!r} must be a number of seconds, or None {none}.")
    try:
        seconds = float(value)
    except OverflowError:  # a whole number that is larger than any float
        seconds = math.inf
    if not 0 < seconds < 1e9:  # NaN is refused as well; some calls of the system overflow not far above
        raise ConfigError(f"{name}={value!r} must be seconds, more than 0 and less than 1e9, or None {none}.")
    return seconds


@dataclass(frozen=True, slots=True)
class Inproc:
    """Environments in the head's own process: breakpoints work, nothing is started.

    Attributes:
        workers: into how many blocks the slots are split. It changes no result; it helps to test splits.
    """

    workers: int = 1

    def __post_init__(self) -> None:
        _check_workers("inproc", self.workers)

    @property
    def text(self) -> str:
        """The short text that means the same."""
        return "inproc" if self.workers == 1 else f"inproc:{self.workers}"


@dataclass(frozen=True, slots=True)
class Local:
    """Worker processes on this host.

    Attributes:
        workers: how many processes; 0 means one per usable core.
        affinity: "auto" pins worker i to core i when the workers cover every usable core, so that they never
            crowd one core; with fewer workers the scheduler does better, above all when several runs share the
            host. "pin" and "off" decide by hand.
        threads: threads for BLAS, OpenMP and the like in each worker; None leaves their defaults.
        worker_memory: at how much memory of its own a worker is replaced by a fresh one, as "2GiB"; "" for no limit.

    Example:
        >>> Local(4, threads=None, worker_memory="2GiB").text
        'local:4,threads=none,worker_memory=2GiB'
    """

    workers: int = 0
    affinity: Literal["auto", "pin", "off"] = "auto"
    threads: int | None = 1
    worker_memory: str = ""

    def __post_init__(self) -> None:
        if type(self.workers) is int and self.workers == 0:
            object.__setattr__(self, "workers", usable_cores())
        _check_workers("local", self.workers)
        if self.affinity not in ("auto", "pin", "off"):
            raise ConfigError(unknown("affinity", str(self.affinity), ("auto", "pin", "off")))
        whole = isinstance(self.threads, int) and not isinstance(self.threads, bool)
        if self.threads is not None and (not whole or self.threads < 1):
            raise ConfigError(f"threads={self.threads!r} must be a whole number of at least 1, or None.")
        if self.worker_memory != "":
            parse_bytes("worker_memory", self.worker_memory)

    @property
    def text(self) -> str:
        """The short text that means the same."""
        return ",".join([f"local:{self.workers}", *options_of(self, without="workers")])

    def core_for(self, worker: int, cores: list[int]) -> int | None:
        """The core that `worker` is pinned to, or None to leave it to the scheduler."""
        pin = self.affinity == "pin" or (self.affinity == "auto" and self.workers >= len(cores))
        return cores[worker % len(cores)] if pin else None


Cluster = Inproc | Local | Remote


def usable_cores() -> int:
    """How many cores this process may use (containers and `taskset` may allow fewer than exist)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    limit = cpu_limit()
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def parse_cluster(cluster: str | Cluster) -> Cluster:
    """Turn the short text of `cluster=` into the typed object.

    Example:
        >>> parse_cluster("local:4").workers
        4
        >>> parse_cluster("local:4,affinity=off,threads=2")
        Local(workers=4, affinity='off', threads=2, worker_memory='')
    """
    if isinstance(cluster, (Inproc, Local, Remote)):
        return cluster
    if not isinstance(cluster, str):
        raise ConfigTypeError(
            f"cluster={cluster!r} must be a text such as 'local:4', or an object such as clusterenv.Local(4)."
        )
    kind = re.split("[:,]", cluster, maxsplit=1)[0]
    if kind in KINDS:
        return parse_remote(cluster)
    if kind not in CLUSTERS:
        raise ConfigError(f"cluster={cluster[:80]!r}: {unknown('kind', kind, CLUSTERS)} For example 'local:4'.")
    rest = cluster.removeprefix(kind)
    count, comma, options = rest.partition(",") if kind == "local" else (rest, "", "")
    if count and not re.fullmatch(r":[0-9]{1,9}", count):
        raise ConfigError(f"cluster={cluster[:80]!r}: the number of workers must be a whole number, as in '{kind}:4'.")
    if count:
        _check_workers(kind, int(count[1:]))
    if kind == "inproc":
        return Inproc(int(count[1:])) if count else Inproc()
    workers = int(count[1:]) if count else 0
    return Local(workers, **values_of(Local, cluster, options.split(",") if comma else [], without="workers"))


def check_num_envs(num_envs: object) -> int:
    """Return `num_envs` as an int, or raise ConfigError."""
    if isinstance(num_envs, bool) or not hasattr(type(num_envs), "__index__"):
        raise ConfigTypeError(f"num_envs={num_envs!r} must be a whole number of at least 1.")
    count = int(num_envs.__index__())  # type: ignore[attr-defined]
    if count < 1:
        raise ConfigError(f"num_envs={count} must be at least 1.")
    if count > MAX_ENVS:
        raise ConfigError(f"num_envs={count} is more than {MAX_ENVS:,}, the most that one batch may hold.")
    return count


def parse_on_loss(on_loss: str | OnLoss) -> OnLoss:
    """Turn "restart", "shrink" or "raise" into the enum."""
    try:
        return OnLoss(on_loss)
    except ValueError:
        raise ConfigError(unknown("on_loss", str(on_loss), [choice.value for choice in OnLoss])) from None


def _check_workers(kind: str, workers: object) -> None:
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise ConfigTypeError(f"{kind}: workers={workers!r} must be a whole number of at least 1.")
    if not 1 <= workers <= MAX_WORKERS:
        raise ConfigError(f"{kind}:{workers} must have between 1 and {MAX_WORKERS} workers.")
