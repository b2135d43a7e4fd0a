"""What we ask of Kubernetes, as objects of its API: Jobs with one pod per node, the Secret with the keys, the Service.

Nothing is sent here, and nothing is text that somebody would have to quote: values of the user become values of JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterenv.clusters import Kubernetes

# From this version on all of it is there by default: Indexed Jobs, a limit of failures per index, rules about which
# failures count, and a replacement only once the old pod has ended. Older ones get one plain Job per node.
INDEXED_SINCE = (1, 29)
KEY_FILE = "/run/clusterenv/keys"
# In memory, in the one folder of every image that is writable for sure.
ALIVE_FILE = "/dev/shm/clusterenv-alive"  # noqa: S108 (of a container of its own)
NODE_LABEL = "clusterenv-node"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
# The user of the Dockerfile. Its number is told as well: from a name Kubernetes cannot see that it is not root.
USER = 10001
# How often one node may fail. Pods that Kubernetes itself takes away do not count.
FAILURES = 6
# A node that is told to end needs a moment. One that is stuck has nothing that could be saved.
_GRACE_S = 10
# How long what has ended can be looked at if no head is there to remove it.
_KEEP_S = 600
# An exit code that no second try would change: the command, a module that cannot be imported, the key file.
_USAGE = 2
# Fresh enough means that the node is in touch with the head. A node touches the file every two seconds.
_ALIVE_S = 30
_IS_ALIVE = (
    f"import os,sys,time; file = {ALIVE_FILE!r}; "
    f"sys.exit(not os.path.exists(file) or time.time() - os.stat(file).st_mtime > {_ALIVE_S})"
)

Manifest = dict[str, Any]


def labels(run: str) -> dict[str, str]:
    """By which everything of a run is found."""
    return {"app.kubernetes.io/name": "clusterenv", "app.kubernetes.io/instance": run}


def indexed_job(cluster: Kubernetes, run: str, command: Sequence[str]) -> Manifest:
    """One Job for all nodes: its pods are numbered, and each number is kept alive by itself."""
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    usage = {"containerName": "node", "operator": "In", "values": [_USAGE]}
    spec = {
        "completionMode": "Indexed",
        "completions": cluster.nodes,
        "parallelism": cluster.nodes,
        "backoffLimitPerIndex": FAILURES,
        # Never two pods with one number at a time.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [disrupted]},
                {"action": "FailIndex", "onExitCodes": usage},
            ]
        },
    }
    return _job(run, labels(run), spec, _pod(cluster, run, command))


def plain_job(cluster: Kubernetes, run: str, command: Sequence[str], node: int) -> Manifest:
    """A Job for one node."""
    pod = _pod(cluster, run, command)
    pod["metadata"]["labels"][NODE_LABEL] = str(node)
    pod["spec"]["hostname"] = f"{run}-{node}"  # which a pod of an Indexed Job has by itself
    spec = {"completions": 1, "parallelism": 1, "backoffLimit": FAILURES}
    return _job(f"{run}-{node}", labels(run) | {NODE_LABEL: str(node)}, spec, pod)


def secret(run: str, keys: str, owners: Sequence[Manifest] = ()) -> Manifest:
    """The keys of the run. They go with the Jobs that own them."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(run, labels(run), owners),
        "type": "Opaque",
        "immutable": True,
        "stringData": {"keys": keys},
    }


def service(run: str, owners: Sequence[Manifest] = ()) -> Manifest:
    """A headless Service: it gives node 3 the name RUN-3.RUN in the DNS of the cluster. No port: no node listens."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(run, labels(run), owners),
        "spec": {"clusterIP": "None", "selector": labels(run), "publishNotReadyAddresses": True},
    }


def owner(job: Manifest) -> Manifest:
    """How others tell that they belong to a Job that Kubernetes has made."""
    return {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}


def _job(name: str, marks: dict[str, str], spec: Manifest, pod: Manifest) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(name, marks),
        "spec": {**spec, "ttlSecondsAfterFinished": _KEEP_S, "template": pod},
    }


def _metadata(name: str, marks: dict[str, str], owners: Sequence[Manifest] = ()) -> Manifest:
    found: Manifest = {"name": name, "labels": marks}
    return {**found, "ownerReferences": list(owners)} if owners else found


def _pod(cluster: Kubernetes, run: str, command: Sequence[str]) -> Manifest:
    apart = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels(run)},
    }
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "subdomain": run,
        # A node needs nothing of Kubernetes, so it gets no way to ask for it.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "topologySpreadConstraints": [apart],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            # The files of a Secret belong to root. With this the group of the pod may read them.
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(cluster, command)],
        "volumes": [
            {"name": "keys", "secret": {"secretName": run, "defaultMode": 0o400}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": cluster.shm}},
        ],
    }
    if cluster.selector:
        spec["nodeSelector"] = dict(label.split("=", 1) for label in cluster.selector)
    if cluster.tolerate:
        spec["tolerations"] = [_toleration(taint) for taint in cluster.tolerate]
    if cluster.priority:
        spec["priorityClassName"] = cluster.priority
    if cluster.pull_secret:
        spec["imagePullSecrets"] = [{"name": cluster.pull_secret}]
    return {"metadata": {"labels": labels(run)}, "spec": spec}


def _container(cluster: Kubernetes, command: Sequence[str]) -> Manifest:
    # A limit on CPUs would stall the workers at odd moments: what was asked for is granted without it.
    asked: Manifest = {"requests": {"cpu": str(cluster.cpus or cluster.workers or 1)}}
    if cluster.memory:
        asked["requests"]["memory"] = cluster.memory
        asked["limits"] = {"memory": cluster.memory}
    return {
        "name": "node",
        "image": cluster.image,
        "command": list(command),
        "resources": asked,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            # By its own path, so that it is a file: in the folder of a volume it is a link, which a node refuses.
            {"name": "keys", "mountPath": KEY_FILE, "subPath": "keys", "readOnly": True},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 (of a container of its own)
        ],
        # Nothing listens in a pod, so the probes look at a file. Started: the node has joined; one that hangs before
        # that is ended. Ready: it is in touch with the head. There is no livenessProbe: the head hears whether
        # a node is alive, and has one that is stuck replaced.
        "startupProbe": {**_is_alive(cluster), "periodSeconds": 5, "failureThreshold": 120},
        "readinessProbe": {**_is_alive(cluster), "periodSeconds": 10},
    }


def _is_alive(cluster: Kubernetes) -> Manifest:
    # Without the packages of the image, so that it costs next to nothing.
    return {"exec": {"command": [cluster.interpreter, "-I", "-S", "-c", _IS_ALIVE]}, "timeoutSeconds": 10}


def _toleration(taint: str) -> Manifest:
    key, equals, value = taint.partition("=")
    return {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
