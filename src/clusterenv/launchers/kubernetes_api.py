"""The few calls to the API of Kubernetes that we need: each has a limit, and each answer is plain JSON.

Answers are not turned into the classes of the client: these refuse what a server of another version says.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import threading
from typing import TYPE_CHECKING, Any

from clusterenv import extras
from clusterenv.errors import LaunchError, words_of
from clusterenv.launchers.kubernetes_words import error_words
from clusterenv.launchers.tail import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterenv.clusters import Kubernetes

# To connect, and between two pieces of an answer.
LIMITS_S = (5.0, 15.0)
# A program that gets the credentials, as clouds have them, may have to ask somewhere itself.
CREDENTIALS_S = 30.0
_HOME_CONFIG = pathlib.Path("~/.kube/config")
_POD_NAMESPACE = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def library(name: str) -> Any:
    """A module of the official client."""
    return extras.load(f"kubernetes.{name}", extra="kubernetes", purpose="a Kubernetes cluster")


class Refused(LaunchError):
    """The server refuses a request, or does not answer; in its own words."""

    def __init__(self, words: str, status: int = 0) -> None:
        super().__init__(words)
        self.status = status


class Api:
    """A connection to the server, in one namespace."""

    def __init__(self, cluster: Kubernetes) -> None:
        self._client = library("client")
        try:
            configuration, self.namespace = _within(CREDENTIALS_S, lambda: _configured(cluster))
        except Exception as error:  # whatever the client and its plugins raise
            raise LaunchError(f"no way to a Kubernetes cluster: {shown(words_of(error))}") from error
        # One try per call: who waits is told at once, and asks again later.
        configuration.retries = False
        self._connection = self._client.ApiClient(configuration)
        self._core, self._batch = self._client.CoreV1Api(self._connection), self._client.BatchV1Api(self._connection)

    def version(self) -> dict[str, Any]:
        """The version of the server."""
        return self._json(self._client.VersionApi(self._connection).get_code)

    def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Make a Job, a Secret or a Service. Fields that the server does not know are refused, not dropped."""
        makers = {
            "Job": self._batch.create_namespaced_job,
            "Secret": self._core.create_namespaced_secret,
            "Service": self._core.create_namespaced_service,
        }
        options = {"dry_run": "All"} if dry_run else {}
        return self._json(makers[manifest["kind"]], self.namespace, manifest, field_validation="Strict", **options)

    def delete(self, kind: str, name: str, *, at_once: bool = False) -> None:
        """Delete what there is by this name, and in the background what belongs to it. Gone already is fine.

        Args:
            kind: "Job", "Secret", "Service" or "Pod".
            name: of the object.
            at_once: without a grace period, and without waiting for a host that does not answer.
        """
        deleters = {
            "Job": self._batch.delete_namespaced_job,
            "Secret": self._core.delete_namespaced_secret,
            "Service": self._core.delete_namespaced_service,
            "Pod": self._core.delete_namespaced_pod,
        }
        options: dict[str, Any] = {"propagation_policy": "Background"}
        if at_once:
            options["grace_period_seconds"] = 0
        try:
            self._call(deleters[kind], name, self.namespace, **options)
        except Refused as error:
            if error.status != 404:
                raise

    def pods(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """The pods with these labels."""
        return self._items(self._core.list_namespaced_pod, label_selector=_selector(labels))

    def jobs(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """The Jobs with these labels."""
        return self._items(self._batch.list_namespaced_job, label_selector=_selector(labels))

    def warnings(self, start: str) -> list[dict[str, Any]]:
        """What Kubernetes complains about, for objects whose names start like this."""
        events = self._items(self._core.list_namespaced_event, field_selector="type=Warning", limit=500)
        return [each for each in events if str((each.get("involvedObject") or {}).get("name", "")).startswith(start)]

    def log(self, pod: str, lines: int) -> str:
        """The last lines that a pod wrote."""
        found = self._call(
            self._core.read_namespaced_pod_log, pod, self.namespace, tail_lines=lines, limit_bytes=64 * 1024
        )
        return shown(found)

    def close(self) -> None:
        """Close the connections."""
        with contextlib.suppress(Exception):  # it may be in use by a call that hangs
            self._connection.close()

    def _items(self, function: Any, **options: Any) -> list[dict[str, Any]]:
        return list(self._json(function, self.namespace, **options).get("items") or [])

    def _json(self, function: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        answer = self._call(function, *arguments, **options)
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Refused(f"the server answered something that is no object of Kubernetes: {shown(answer)[:200]!r}")
        return found

    def _call(self, function: Any, *arguments: Any, **options: Any) -> bytes:
        """The bytes of an answer."""
        try:
            answer = function(*arguments, _preload_content=False, _request_timeout=LIMITS_S, **options)
            return bytes(answer.data)
        except self._client.exceptions.ApiException as error:
            raise Refused(error_words(error.status, error.reason, error.body), error.status or 0) from error
        except Exception as error:  # of urllib3, of a plugin for credentials
            raise Refused(f"Kubernetes does not answer: {shown(words_of(error))[:500]}") from error


def _configured(cluster: Kubernetes) -> tuple[Any, str]:
    """The settings of a connection, and the namespace: of the kubeconfig, or else of the pod in which we run."""
    config, settings = library("config"), library("client").Configuration()
    # Told in full: the client itself looks at KUBECONFIG when it is imported, and never again.
    file = cluster.kubeconfig or os.environ.get("KUBECONFIG") or str(_HOME_CONFIG)
    if file != str(_HOME_CONFIG) or cluster.context or _HOME_CONFIG.expanduser().exists():
        config.load_kube_config(file, cluster.context or None, client_configuration=settings)
        contexts, active = config.list_kube_config_contexts(file)
        if cluster.context:
            active = next(each for each in contexts if each["name"] == cluster.context)
        return settings, cluster.namespace or active["context"].get("namespace") or "default"
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise LaunchError(
            "there is no ~/.kube/config, KUBECONFIG is not set, and this host is no pod. Set kubeconfig= to a file."
        )
    config.load_incluster_config(client_configuration=settings)
    return settings, cluster.namespace or _POD_NAMESPACE.read_text().strip()


def _within(limit_s: float, function: Callable[[], Any]) -> Any:
    """The result of a function that may hang; if it does, it is left behind."""
    result: list[Any] = []
    problem: list[BaseException] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as error:  # raised again below
            problem.append(error)

    thread = threading.Thread(target=run, name="clusterenv-k8s-credentials", daemon=True)
    thread.start()
    thread.join(limit_s)
    if problem:
        raise problem[0]
    if not result:
        raise LaunchError(f"the credentials of the kubeconfig did not come within {limit_s:.0f} s.")
    return result[0]


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
