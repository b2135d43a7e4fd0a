"""A job of a Slurm cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from clusterenv.clusters.base import MAX_WORKERS_PER_NODE, Remote
from clusterenv.clusters.checks import NAME, check_whole, refused
from clusterenv.errors import ConfigError

_NAMES = re.compile(rf"{NAME.pattern}(,{NAME.pattern})*")
_TIME = re.compile(r"[0-9]{1,7}(:[0-9]{1,2}){0,2}|[0-9]{1,4}-[0-9]{1,2}(:[0-9]{1,2}){0,2}|UNLIMITED|INFINITE")
# No blank, quote, hash or backslash: sbatch reads its #SBATCH lines with rules of its own for these.
_SBATCH = re.compile(r"--([a-z][a-z0-9-]*)(=[A-Za-z0-9_.,:;/@+=%*&|()\[\]!~^-]{1,500})?")

# Options of sbatch that a field of `Slurm` sets.
_FIELD_OF_OPTION = {
    "account": "account",
    "cpus-per-task": "cpus",
    "nodes": "nodes",
    "ntasks": "nodes",
    "ntasks-per-node": "workers",
    "partition": "partition",
    "qos": "qos",
    "time": "time",
}
# Options that the launcher sets itself, and options with which sbatch would not simply submit its script.
_RESERVED = (
    *("array", "error", "input", "job-name", "open-mode", "output", "parsable", "quiet"),
    *("help", "test-only", "usage", "verbose", "version", "wait", "wrap"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm(Remote):
    """One job of a Slurm cluster, one node per host of the job.

    Attributes:
        partition: where the job runs; "" leaves it to Slurm.
        account: who pays; "" leaves it to Slurm.
        qos: the quality of service; "" leaves it to Slurm.
        time: the time limit as Slurm writes it: "30" (minutes), "2:00:00", "1-00:00:00" or "UNLIMITED".
        cpus: CPUs per host. 0 means as many as `workers`, and the whole host if that is 0 too.
        extra: further options of sbatch, as "--mem=8G"; without blanks and quotes.
        folder: where the keys and the output of the job lie; all hosts must see it. "" means ~/.clusterenv.
    """

    kind: ClassVar[str] = "slurm"

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    cpus: int = 0
    extra: tuple[str, ...] = ()
    folder: str = ""
    wait_s: float | None = 600.0

    def _check(self) -> None:
        for name in ("partition", "account", "qos"):
            value = getattr(self, name)
            if value and not _NAMES.fullmatch(value):
                raise refused(self, name, value, "letters, digits and . _ @ + -, as in 'cpu' or 'cpu,long'")
        if self.time and not _TIME.fullmatch(self.time):
            raise refused(self, "time", self.time, "minutes, h:mm:ss, d-hh:mm:ss or UNLIMITED, as in '2:00:00'")
        if self.time and not re.search(r"[1-9UI]", self.time):
            raise ConfigError(f"slurm: time={self.time!r} means no limit to Slurm. Write 'UNLIMITED' if you mean that.")
        check_whole(self, "cpus", 0, MAX_WORKERS_PER_NODE)
        for option in self.extra:
            _check_sbatch(option)


def _check_sbatch(option: str) -> None:
    found = _SBATCH.fullmatch(option)
    if not found:
        raise ConfigError(
            f"slurm: extra={option[:80]!r} must be a long option of sbatch without blanks, quotes, hashes and "
            "backslashes, as in '--mem=8G'."
        )
    # By their beginnings: sbatch takes "--node" for "--nodes".
    own_field = next((each for name, each in _FIELD_OF_OPTION.items() if name.startswith(found[1])), None)
    if own_field:
        raise ConfigError(f"slurm: extra={option[:80]!r} has a field of its own. Use {own_field}= in its place.")
    if any(name.startswith(found[1]) for name in _RESERVED):
        raise ConfigError(f"slurm: extra={option[:80]!r} is not for you to set: ClusterEnv needs it. Leave it out.")
