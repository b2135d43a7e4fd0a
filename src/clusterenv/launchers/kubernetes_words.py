"""Kubernetes's words: what its answers say about the pods of a run. Nothing is asked here."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterenv.launchers.manifests import INDEX_LABEL, NODE_LABEL
from clusterenv.launchers.tail import last_lines, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Why a container waits when it will wait for ever. `ErrImagePull` is not among them: it is the first try of several.
_NEVER_STARTS = {
    "ImagePullBackOff": "Is image= right, may the hosts pull it (pull_secret=), or was it loaded on them?",
    "InvalidImageName": "Correct image=.",
    "ErrImageNeverPull": "Load the image on the hosts.",
    "CreateContainerConfigError": "",
    "CreateContainerError": "",
}
# How a pod says that Kubernetes itself has taken it away; a new one comes.
_TAKEN_AWAY = ("Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated", "NodeAffinity")
# Exit codes with a meaning that is worth a word.
_CODES = {137: "Was it killed for its memory? Ask for more with memory=, or run fewer workers."}
_MAX_WORDS = 500


@dataclass(frozen=True, slots=True)
class Pod:
    """What Kubernetes says about one pod.

    Attributes:
        node: which node of the run it is; None if it does not say.
        born: when it was made, in the words of Kubernetes, which sort by time.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        why: the reason that it gives, and the engine's own words about it.
        code: how the node ended, if it has.
        leaving: whether it was deleted, or taken away by Kubernetes itself.
    """

    name: str
    uid: str
    node: int | None
    born: str
    phase: str
    why: str = ""
    code: int | None = None
    leaving: bool = False

    @property
    def running(self) -> bool:
        """Whether the node runs in it."""
        return self.phase == "Running" and not self.leaving

    @property
    def hopeless(self) -> str | None:
        """Why this pod never becomes a node, and what to do; None while there is hope."""
        if self.leaving:
            return None
        if self.phase == "Failed":
            ended = f"ended with exit code {self.code}" if self.code is not None else "failed"
            return " ".join(filter(None, (f"{ended}{_in_brackets(self.why)}.", _CODES.get(self.code or 0, ""))))
        reason = self.why.partition(":")[0]
        if self.phase == "Pending" and reason in _NEVER_STARTS:
            return " ".join(filter(None, (f"does not start ({self.why}).", _NEVER_STARTS[reason])))
        return None


def parse_pod(found: Mapping[str, Any]) -> Pod:
    """A pod of an answer. Fields that are missing are taken for empty."""
    meta, status = found.get("metadata") or {}, found.get("status") or {}
    state = next((each.get("state") or {} for each in status.get("containerStatuses") or []), {})
    ended = state.get("terminated") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or []}
    reason, taken = status.get("reason") or "", conditions.get("DisruptionTarget") or {}
    return Pod(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        node=_node_of(meta),
        born=str(meta.get("creationTimestamp", "")),
        phase=str(status.get("phase", "Unknown")),
        why=_why(status, state, conditions),
        code=ended.get("exitCode"),
        leaving="deletionTimestamp" in meta or reason in _TAKEN_AWAY or taken.get("status") == "True",
    )


def newest(pods: Iterable[Pod]) -> dict[int, Pod]:
    """The latest pod of every node; of two of one second the one that has not ended."""
    found: dict[int, Pod] = {}
    for pod in sorted(pods, key=lambda pod: (pod.born, pod.phase in ("Running", "Pending"))):
        if pod.node is not None:
            found[pod.node] = pod
    return found


def summary(nodes: int, pods: Iterable[Pod], missing: str = "") -> str:
    """One line about all pods: "2 of 8 pods run; 6 Pending (Unschedulable: 0/2 nodes are available)".

    Args:
        nodes: how many there shall be.
        pods: the latest of every node.
        missing: why pods are missing, if Kubernetes says.
    """
    pods = list(pods)
    others = Counter(_state(pod) for pod in pods if not pod.running)
    if len(pods) < nodes:
        others[f"not made yet{_in_brackets(missing)}"] = nodes - len(pods)
    parts = [f"{sum(pod.running for pod in pods)} of {nodes} pods run"]
    parts += [f"{count} {state}" for state, count in others.most_common(4)]
    return "; ".join(parts) + ("; ..." if len(others) > 4 else "")


def job_failure(job: Mapping[str, Any]) -> str | None:
    """Why a Job makes no more pods; None while it does. The end of a good Job is no failure."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition.get("type") in ("Failed", "FailureTarget") and condition.get("status") == "True":
            said = _said(condition.get("reason"), condition.get("message"))
            return f"job {(job.get('metadata') or {}).get('name', '')} failed ({said})"
    return None


def is_over(job: Mapping[str, Any], node: int) -> bool:
    """Whether no pod will be made for this node any more, whatever happens."""
    status = job.get("status") or {}
    ended = any(
        each.get("type") in ("Complete", "Failed", "FailureTarget") and each.get("status") == "True"
        for each in status.get("conditions") or []
    )
    return ended or any(_is_in(node, status.get(field) or "") for field in ("completedIndexes", "failedIndexes"))


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Whether somebody, such as a queue, holds a Job back."""
    return bool((job.get("spec") or {}).get("suspend"))


def refusal(events: Iterable[Mapping[str, Any]]) -> str:
    """The last words of Kubernetes about pods that it did not make: a quota, a rule of the namespace."""
    refused = [each for each in events if each.get("reason") == "FailedCreate"]
    last = max(refused, key=_time_of, default={})
    return _said("FailedCreate", last.get("message")) if last else ""


def is_forbidden(words: str) -> bool:
    """Whether a refusal is a decision, which waiting does not change, rather than an accident."""
    return bool(re.search(r"\b(forbidden|is invalid|not found)\b", words))


def warning_of(pod: str, events: Sequence[Mapping[str, Any]]) -> str:
    """The last warning about a pod."""
    mine = [each for each in events if (each.get("involvedObject") or {}).get("name") == pod]
    last = max(mine, key=_time_of, default={})
    return _said(last.get("reason"), last.get("message")) if last else ""


def parse_version(answer: Mapping[str, Any]) -> tuple[int, int]:
    """The version of the server; some add a sign to the second number.

    Example:
        >>> parse_version({"major": "1", "minor": "29+"})
        (1, 29)
    """
    numbers = [re.match(r"[0-9]{1,6}", str(answer.get(each, ""))) for each in ("major", "minor")]
    return int(numbers[0][0]) if numbers[0] else 0, int(numbers[1][0]) if numbers[1] else 0


def error_words(status: int, reason: str, body: bytes | str | None) -> str:
    """What the server says about a request that it refuses: "403 Forbidden: jobs.batch is forbidden: ..."."""
    text = shown(body or "")
    try:
        message = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        message = text
    said = " ".join(last_lines(message).split())[:_MAX_WORDS]
    return f"{status} {shown(reason or '')}" + (f": {said}" if said else "")


def _node_of(meta: Mapping[str, Any]) -> int | None:
    """The number in a label; servers before 1.28 tell it in an annotation only."""
    for told, key in (("labels", NODE_LABEL), ("labels", INDEX_LABEL), ("annotations", INDEX_LABEL)):
        number = str((meta.get(told) or {}).get(key, ""))
        if re.fullmatch(r"[0-9]{1,6}", number):
            return int(number)
    return None


def _why(status: Mapping[str, Any], state: Mapping[str, Any], conditions: Mapping[Any, Any]) -> str:
    """The nearest reason: of the container, of the pod, of the scheduler."""
    for kind in ("terminated", "waiting"):
        told = state.get(kind) or {}
        if told.get("reason"):
            return _said(told["reason"], told.get("message"))
    if status.get("reason"):
        return _said(status["reason"], status.get("message"))
    placed = conditions.get("PodScheduled") or {}
    return _said(placed.get("reason"), placed.get("message")) if placed.get("status") == "False" else ""


def _said(reason: object, message: object) -> str:
    """A reason and a message of Kubernetes, safe to show."""
    words = [" ".join(shown(str(each)).split()) for each in (reason, message) if each]
    return ": ".join(words)[:_MAX_WORDS]


def _state(pod: Pod) -> str:
    return ("Terminating" if pod.leaving else pod.phase) + _in_brackets(pod.why)


def _in_brackets(words: str) -> str:
    return f" ({words.rstrip('.')})" if words else ""


def _time_of(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _is_in(node: int, numbers: str) -> bool:
    """Whether a number is in a list such as "1,3-5"."""
    for part in numbers.split(","):
        found = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if found and int(found[1]) <= node <= int(found[2] or found[1]):
            return True
    return False
