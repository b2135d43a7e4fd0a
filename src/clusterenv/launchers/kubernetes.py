"""Nodes in the pods of a Kubernetes cluster: Jobs that keep one pod per node, and the keys in a Secret that they own.

A thread looks at the pods every few seconds, so that nobody who asks how they fare waits for the server.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import secrets
import shlex
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterenv import extras
from clusterenv.errors import LaunchError, words_of
from clusterenv.launchers import manifests
from clusterenv.launchers.kubernetes_api import Api, Refused, library
from clusterenv.launchers.kubernetes_words import (
    Pod,
    is_forbidden,
    is_over,
    is_suspended,
    job_failure,
    newest,
    parse_pod,
    parse_version,
    refusal,
    summary,
    warning_of,
)
from clusterenv.launchers.tail import LAST_LINES, last_lines, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from clusterenv.clusters import Kubernetes
    from clusterenv.launchers.base import NodeJob
    from clusterenv.launchers.manifests import Manifest

_log = logging.getLogger(__name__)

# The server serves everybody: once in this time is often enough.
LOOK_S = 2.0
_CLOSE_LOOK_S = 0.2
# What is not deleted goes on taking CPUs of others: it is worth some time, however short the limit.
_END_S = 10.0
_LOGS_S = 10.0
_LOG_LINES = 100
_MAX_WORDS = 200
_DRY_RUN = "clusterenv-dry-run"


class KubernetesLauncher:
    """Starts the nodes of a `Kubernetes` cluster."""

    def __init__(self, cluster: Kubernetes) -> None:
        library("client")
        self._cluster = cluster
        self._run = f"clusterenv-{secrets.token_hex(4)}"
        self._api: Api | None = None
        self._made: list[tuple[str, str]] = []  # kind and name, what may be there of ours
        self._watch: _Watch | None = None
        self._started = False

    @property
    def nodes(self) -> int:
        """How many nodes it starts: one per pod."""
        return self._cluster.nodes

    def script(self, job: NodeJob) -> str:
        """The manifests, for a server of today, without the keys. The name in them is made anew for every run."""
        yaml = extras.load("yaml", extra="kubernetes", purpose="a Kubernetes cluster")
        version = ".".join(map(str, manifests.INDEXED_SINCE))
        parts = [
            *self._jobs(job, _DRY_RUN, indexed=True),
            manifests.secret(_DRY_RUN, "<the keys of the run>"),
            manifests.service(_DRY_RUN),
        ]
        return (
            f"# In namespace {self._cluster.namespace or 'of the context'}, for Kubernetes {version} and newer: older "
            "ones get one Job per node.\n# The Secret and the Service belong to the Job and go with it.\n"
        ) + "---\n".join(yaml.safe_dump(part, sort_keys=False, width=1000) for part in parts)

    def start(self, job: NodeJob) -> None:
        """Make the Jobs, then what belongs to them: there is never a Secret that nobody owns."""
        if self._started:
            raise LaunchError("these nodes were started before. Make a new launcher for new ones.")
        self._started = True
        try:
            self._api = api = Api(self._cluster)
            indexed = parse_version(api.version()) >= manifests.INDEXED_SINCE
            jobs = [self._create(api, each) for each in self._jobs(job, self._run, indexed=indexed)]
            owners = [manifests.owner(each) for each in jobs]
            self._create(api, manifests.secret(self._run, job.keys, owners))
            self._create(api, manifests.service(self._run, owners))
            self._watch = _Watch(api, self._run, self.nodes)
        except BaseException:
            self.close(_END_S)
            raise

    def restart(self, node: int) -> bool:
        """Delete what is left of this node, whose Job makes another; False if the Job has given this node up."""
        watch = self._watch
        return watch is not None and 0 <= node < self.nodes and watch.replace(node)

    def status(self) -> str:
        """How many pods run, and what Kubernetes says about the others."""
        return "no pods" if self._watch is None else self._watch.seen.status

    def failure(self) -> str | None:
        """Why pods never become nodes, in the words of Kubernetes and with the last lines they wrote."""
        return None if self._watch is None else self._watch.failure()

    def logs(self) -> dict[str, str]:
        """The last lines that each node wrote, by the name of its pod."""
        api, watch, end = self._api, self._watch, time.monotonic() + _LOGS_S
        found: dict[str, str] = {}
        for _, pod in sorted(watch.seen.pods.items() if watch is not None else ()):
            if api is None or time.monotonic() > end:
                break
            with contextlib.suppress(Refused):  # one that has not started has written nothing
                found[pod.name] = api.log(pod.name, _LOG_LINES)
        return found

    def close(self, limit_s: float) -> None:
        """Delete the Jobs and all that belongs to them, and wait within the limit until the pods are gone."""
        watch, self._watch = self._watch, None
        api, self._api = self._api, None
        if watch is not None:
            watch.close()
        if api is None:
            return
        end = time.monotonic() + limit_s
        if self._delete(api, time.monotonic() + max(limit_s, _END_S)):
            _wait_for_pods(api, self._run, end)
        api.close()

    def _jobs(self, job: NodeJob, run: str, *, indexed: bool) -> list[Manifest]:
        cluster, arguments = self._cluster, [*job.arguments, "--alive-file", manifests.ALIVE_FILE]
        if cluster.cpus and not cluster.workers:
            arguments += ["--workers", str(cluster.cpus)]
        job = replace(job, arguments=tuple(arguments))
        if indexed:
            return [manifests.indexed_job(cluster, run, job.command(manifests.KEY_FILE))]
        commands = [job.command(manifests.KEY_FILE, node) for node in range(self.nodes)]
        return [manifests.plain_job(cluster, run, command, node) for node, command in enumerate(commands)]

    def _create(self, api: Api, manifest: Manifest) -> dict[str, Any]:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        self._made.append((kind, name))  # also if no answer comes: it may be there
        try:
            return api.create(manifest)
        except Refused as error:
            if 400 <= error.status < 500:
                self._made.pop()
            raise LaunchError(f"the {kind} {name} was refused: {error} (namespace {api.namespace})") from error

    def _delete(self, api: Api, end: float) -> bool:
        """Delete what we made; whether all of it is known to go."""
        left, why = [], ""
        for kind, name in self._made:
            try:
                if time.monotonic() > end:
                    raise Refused("there was no time left")
                api.delete(kind, name)
            except Refused as error:
                left.append(f"{kind.lower()}/{name}")
                why = str(error)
        self._made = []
        if left:
            words = shlex.join(["kubectl", "delete", "--namespace", api.namespace, *left])
            _log.warning("kubernetes: %d objects may still be there (%s). Delete them: %s", len(left), why, words)
        return not left


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen at the last look.

    Attributes:
        pods: the latest of every node.
        problems: what was told about nodes that never come, by the uid of the pod, or "" for the run.
    """

    status: str = "the Jobs are made"
    pods: Mapping[int, Pod] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    jobs: Sequence[Mapping[str, Any]] = ()


class _Watch:
    """Looks at the pods of a run on a thread of its own, and there deletes those that shall be replaced."""

    def __init__(self, api: Api, run: str, nodes: int) -> None:
        self._api, self._run, self._nodes = api, run, nodes
        self.seen = _Seen()
        # The pods of a node that is replaced may say what they like.
        self._forgiven: set[str] = set()
        self._words: dict[str, str] = {}  # of pods that ended, by uid
        self._orders: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="clusterenv-k8s", daemon=True)
        self._thread.start()

    def failure(self) -> str | None:
        """What was told about nodes that never come, but for those that are being replaced."""
        seen = self.seen
        return "\n".join(words for uid, words in seen.problems.items() if uid not in self._forgiven) or None

    def replace(self, node: int) -> bool:
        """Have a node replaced; whether its Job will do that."""
        seen = self.seen
        if any(is_over(job, node) for job in _jobs_of(node, seen.jobs)):
            return False
        if node in seen.pods:
            self._forgiven.add(seen.pods[node].uid)
        self._orders.put(node)
        return True

    def close(self) -> None:
        """Look no more. A call that hangs is left behind."""
        self._closed.set()
        self._orders.put(None)  # which wakes it
        self._thread.join(_CLOSE_LOOK_S)

    def _work(self) -> None:
        node: int | None = None
        while not self._closed.is_set():
            try:
                self._look(node)
                node = None
            except Refused as error:  # which says nothing about the pods; an order is tried again
                self.seen = replace(self.seen, status=f"the pods cannot be seen: {error}")
                self._closed.wait(LOOK_S)
                continue
            except Exception as error:  # no answer that we know; if this thread ended, nobody would hear of anything
                self.seen = replace(self.seen, problems={"": _not_understood(error)})
            with contextlib.suppress(queue.Empty):
                node = self._orders.get(timeout=LOOK_S)

    def _look(self, replaced: int | None) -> None:
        api, labels = self._api, manifests.labels(self._run)
        every = [parse_pod(each) for each in api.pods(labels)]
        if replaced is not None:
            mine = [pod for pod in every if pod.node == replaced]
            self._forgiven |= {pod.uid for pod in mine}
            for pod in mine:
                if pod.phase not in ("Succeeded", "Failed"):
                    api.delete("Pod", pod.name, at_once=True)
        pods, jobs = newest(every), api.jobs(labels)
        missing, problems = "", {}
        if sum(pod.running for pod in pods.values()) < self._nodes:
            events = self._events()
            missing = refusal(events) or ("the Job is suspended" if any(map(is_suspended, jobs)) else "")
            pods = {node: _with_warning(pod, events) for node, pod in pods.items()}
        if len(pods) < self._nodes and is_forbidden(missing):
            problems[""] = f"pods could not be made: {missing}"
        for node, pod in pods.items():
            if pod.hopeless is not None:
                problems[pod.uid] = f"node {node}: pod {pod.name} {pod.hopeless} {self._last_words(pod)}".strip()
        for job in jobs:
            if (words := job_failure(job)) is not None and not problems:
                problems[""] = words
        self.seen = _Seen(summary(self._nodes, pods.values(), missing), pods, problems, jobs)

    def _events(self) -> list[dict[str, Any]]:
        try:
            return self._api.warnings(self._run)
        except Refused as error:
            if error.status != 403:  # who may not see events has to do without
                raise
            return []

    def _last_words(self, pod: Pod) -> str:
        """What a pod that ended has written, asked for once."""
        if pod.code is None:
            return ""
        if pod.uid not in self._words:
            try:
                self._words[pod.uid] = last_lines(self._api.log(pod.name, LAST_LINES))
            except Refused as error:
                self._words[pod.uid] = f"(its log cannot be read: {error})"
        return f"It wrote: {self._words[pod.uid]}" if self._words[pod.uid] else "It wrote nothing."


def _not_understood(error: Exception) -> str:
    why = f"{type(error).__name__}: {shown(words_of(error))}"[:_MAX_WORDS]
    return f"Kubernetes says something about the pods that is not understood ({why}). Is kubeconfig= the right one?"


def _with_warning(pod: Pod, events: Sequence[Mapping[str, Any]]) -> Pod:
    """A pod that waits without a reason of its own: a volume, a network, a node that does not answer."""
    if pod.phase != "Pending" or pod.why.partition(":")[0] not in ("", "ContainerCreating"):
        return pod
    return replace(pod, why=warning_of(pod.name, events) or pod.why)


def _jobs_of(node: int, jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The Job of this node: its own, or the one of all."""
    marks = [(each, ((each.get("metadata") or {}).get("labels") or {}).get(manifests.NODE_LABEL)) for each in jobs]
    return [job for job, mark in marks if mark in (None, str(node))]


def _wait_for_pods(api: Api, run: str, end: float) -> None:
    while time.monotonic() < end:
        try:
            if not api.pods(manifests.labels(run)):
                return
        except Refused:
            return  # what was deleted goes without us
        time.sleep(_CLOSE_LOOK_S)
    _log.info("kubernetes: the pods of %s are deleted and still ending", run)
