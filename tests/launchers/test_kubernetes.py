"""The launcher for Kubernetes against a server that stands in for the real one: every message, and odd answers."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import pathlib
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from clusterenv.cli.exits import NOT_STARTED, OK
from clusterenv.cli.main import main
from clusterenv.clusters import Kubernetes
from clusterenv.errors import ConfigError, LaunchError
from clusterenv.launchers import kubernetes as launcher_module
from clusterenv.launchers import kubernetes_api, manifests
from clusterenv.launchers.base import NodeJob
from clusterenv.launchers.kubernetes import KubernetesLauncher
from clusterenv.testing.contracts import KEYS
from tests.launchers.fake_kubernetes import TOKEN, FakeKubernetes, ended, pod, served, waiting
from tests.zoo import quiet_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_S = 30.0
JOB = NodeJob(("--head", "tcp+curve://10.0.0.1:5555", "--workers", "2"), KEYS, "python3")
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "clusters" / "kubernetes.md"
GOLDEN = pathlib.Path(__file__).with_name("kubernetes_dry_run.yaml")
TOO_SMALL = "0/2 nodes are available: 2 Insufficient cpu."
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": TOO_SMALL}
QUOTA = (
    'Error creating: pods "x" is forbidden: exceeded quota: one-pod, requested: pods=1, used: pods=1, limited: pods=1'
)


@pytest.fixture(autouse=True, scope="module")
def _cheap_collections() -> None:
    """The check for leaks collects garbage twice per test: spare it the many objects of the client."""
    kubernetes_api.library("client")
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_module, "LOOK_S", 0.02)
    monkeypatch.setattr(launcher_module, "_CLOSE_LOOK_S", 0.02)


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> Iterator[FakeKubernetes]:
    with served(FakeKubernetes(tmp_path)) as one:
        yield one


@contextlib.contextmanager
def launched(fake: FakeKubernetes, **options: Any) -> Iterator[KubernetesLauncher]:
    launcher = KubernetesLauncher(Kubernetes(**{"nodes": 2, "kubeconfig": fake.kubeconfig, **options}))
    launcher.start(JOB)
    try:
        yield launcher
    finally:
        launcher.close(LIMIT_S)


def run_of(fake: FakeKubernetes) -> str:
    (name,) = fake.objects["secrets"]
    return name


def failure_of(launcher: KubernetesLauncher) -> str:
    wait_until(lambda: launcher.failure() is not None, LIMIT_S, launcher.status)
    return str(launcher.failure())


def looks(fake: FakeKubernetes, count: int = 2) -> None:
    """Wait until the launcher has looked again, twice, so that it has seen what is there now."""
    before = len(fake.asked("GET pods"))
    wait_until(lambda: len(fake.asked("GET pods")) > before + count, LIMIT_S)


# Starting.


def test_a_server_of_today_gets_one_indexed_job(fake: FakeKubernetes) -> None:
    with launched(fake, nodes=8, cpus=3):
        run = run_of(fake)
        assert re.fullmatch(r"clusterenv-[0-9a-f]{8}", run)
        assert list(fake.objects["jobs"]) == list(fake.objects["services"]) == [run]
        job = fake.objects["jobs"][run]
        assert job["spec"]["completionMode"] == "Indexed"
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        assert command == [
            "python3", "-m", "clusterenv", "node", *JOB.arguments, "--alive-file", manifests.ALIVE_FILE,
            "--workers", "3", "--key-file", manifests.KEY_FILE,
        ]  # fmt: skip
        assert [each.what for each in fake.requests[:4]] == ["/version/", "POST jobs", "POST secrets", "POST services"]
        assert all(each.query["fieldValidation"] == "Strict" for each in fake.requests[1:4])
        assert all("/namespaces/research/" in each.path for each in fake.requests[1:4])


@pytest.mark.parametrize("minor", ["20", "28", "28+"])
def test_an_old_server_gets_a_job_per_node(fake: FakeKubernetes, minor: str) -> None:
    fake.minor = minor
    with launched(fake, nodes=3):
        run = run_of(fake)
        assert list(fake.objects["jobs"]) == [f"{run}-{node}" for node in range(3)]
        for node, job in enumerate(fake.objects["jobs"].values()):
            command = job["spec"]["template"]["spec"]["containers"][0]["command"]
            assert command[command.index("--index") + 1] == str(node)
        owners = fake.objects["secrets"][run]["metadata"]["ownerReferences"]
        assert [owner["name"] for owner in owners] == list(fake.objects["jobs"]), "it goes with the last of them"
    assert fake.objects == {"jobs": {}, "secrets": {}, "services": {}}


def test_the_secret_and_the_service_belong_to_the_job(fake: FakeKubernetes) -> None:
    with launched(fake):
        run = run_of(fake)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": run, "uid": f"uid-of-{run}"}
        for kind in ("secrets", "services"):
            assert fake.objects[kind][run]["metadata"]["ownerReferences"] == [owner]


def test_the_keys_are_sent_once_and_never_logged(fake: FakeKubernetes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with launched(fake):
        looks(fake)
    with_keys = [each.what for each in fake.requests if "canary-of-the-secret" in json.dumps(each.body)]
    assert with_keys == ["POST secrets"]
    assert "canary" not in caplog.text
    assert not any("canary" in str(each.query) + each.path for each in fake.requests)


def test_workers_that_were_asked_for_are_not_changed(fake: FakeKubernetes) -> None:
    with launched(fake, workers=2, cpus=3):
        (job,) = fake.objects["jobs"].values()
        assert job["spec"]["template"]["spec"]["containers"][0]["command"].count("--workers") == 1


@pytest.mark.parametrize(
    ("options", "namespace"),
    [({"context": "two"}, "other"), ({"namespace": "mine"}, "mine"), ({"context": "two", "namespace": "x"}, "x")],
)
def test_the_context_and_the_namespace_are_those_that_were_named(
    fake: FakeKubernetes, options: dict[str, str], namespace: str
) -> None:
    with launched(fake, **options):
        assert f"/namespaces/{namespace}/" in fake.asked("POST jobs")[0].path


def test_the_kubeconfig_of_the_environment_is_taken(fake: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", fake.kubeconfig)
    with launched(fake, kubeconfig=""):
        assert len(fake.objects["jobs"]) == 1


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        ("/version/", "401 Unauthorized: no way"),
        ("POST jobs", "the Job clusterenv-NAME was refused: 403 Forbidden: no way (namespace research)"),
        ("POST secrets", "the Secret clusterenv-NAME was refused: 403 Forbidden: no way (namespace research)"),
        ("POST services", "the Service clusterenv-NAME was refused: 403 Forbidden: no way (namespace research)"),
    ],
)
def test_what_the_server_refuses_is_told_in_its_words(fake: FakeKubernetes, refused: str, says: str) -> None:
    fake.refuses[refused] = (401 if "version" in refused else 403, "no way")
    with pytest.raises(LaunchError) as caught, launched(fake):
        pass
    assert re.sub(r"clusterenv-[0-9a-f]{8}", "clusterenv-NAME", str(caught.value)) == says
    assert fake.objects == {"jobs": {}, "secrets": {}, "services": {}}, "nothing is left of what was made before"


def test_what_was_refused_is_not_deleted(fake: FakeKubernetes, caplog: pytest.LogCaptureFixture) -> None:
    fake.refuses = {"POST jobs": (403, "no way"), "DELETE": (403, "no way")}
    with pytest.raises(LaunchError, match="no way"), launched(fake):
        pass
    assert caplog.records == [], "nobody is told to delete what was never made"


def test_what_may_be_there_without_an_answer_is_deleted(fake: FakeKubernetes) -> None:
    fake.refuses = {"POST jobs": (504, "too slow")}
    with pytest.raises(LaunchError, match="504 Gateway Timeout: too slow"), launched(fake):
        pass
    assert len(fake.asked("DELETE jobs")) == 1


def test_a_server_that_is_not_there(fake: FakeKubernetes) -> None:
    fake.port = quiet_port()
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"Kubernetes does not answer: .*Connection refused"), launched(fake):
        pass
    assert time.monotonic() - began < LIMIT_S


def test_a_server_that_hangs(fake: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_api, "LIMITS_S", (0.2, 0.2))
    fake.delay_s = 1.0
    with pytest.raises(LaunchError, match=r"Kubernetes does not answer: .*timed out"), launched(fake):
        pass


def test_something_else_than_kubernetes(fake: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "answer", lambda request: (200, "<html>\x1b[31mLog in</html>"), raising=False)
    with pytest.raises(LaunchError, match="something that is no object of Kubernetes: '<html>Log in</html>'"):
        KubernetesLauncher(Kubernetes(kubeconfig=fake.kubeconfig)).start(JOB)


def test_no_kubeconfig_at_all(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(LaunchError, match=r"there is no ~/.kube/config, .* Set kubeconfig= to a file"):
        KubernetesLauncher(Kubernetes()).start(JOB)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kubeconfig": "/no/such/file"}, "no way to a Kubernetes cluster: Invalid kube-config file"),
        ({"context": "three"}, "no way to a Kubernetes cluster: .*three"),
    ],
)
def test_a_kubeconfig_that_does_not_help(fake: FakeKubernetes, options: dict[str, str], says: str) -> None:
    with pytest.raises(LaunchError, match=says), launched(fake, **options):
        pass
    assert fake.requests == []


def test_credentials_that_do_not_come(fake: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_api, "CREDENTIALS_S", 0.1)
    over = threading.Event()
    monkeypatch.setattr(kubernetes_api, "_configured", lambda cluster: over.wait(LIMIT_S))
    says = "the credentials of the kubeconfig did not come within 0 s"
    try:
        with pytest.raises(LaunchError, match=says), launched(fake):
            pass
    finally:
        over.set()


def test_inside_a_pod_its_service_account_is_taken(
    fake: FakeKubernetes, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def incluster(client_configuration: Any) -> None:
        client_configuration.host = f"http://127.0.0.1:{fake.port}"
        client_configuration.api_key = {"authorization": f"Bearer {TOKEN}"}

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setattr("kubernetes.config.load_incluster_config", incluster)
    (tmp_path / "namespace").write_text("of-the-pod\n")
    monkeypatch.setattr(kubernetes_api, "_POD_NAMESPACE", tmp_path / "namespace")
    with launched(fake, kubeconfig=""):
        assert "/namespaces/of-the-pod/" in fake.asked("POST jobs")[0].path


def test_a_missing_library_is_answered_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    with pytest.raises(ConfigError) as caught:
        KubernetesLauncher(Kubernetes())
    assert str(caught.value).startswith("a Kubernetes cluster needs 'kubernetes")
    assert str(caught.value).endswith('Install it: pip install "clusterenv[kubernetes]"')


def test_a_launcher_starts_once(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher, pytest.raises(LaunchError, match="started before"):
        launcher.start(JOB)


# Waiting.

STATUS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "none yet": ([], "0 of 2 pods run; 2 not made yet"),
    "one runs": ([pod(0)], "1 of 2 pods run; 1 not made yet"),
    "both run": ([pod(0), pod(1)], "2 of 2 pods run"),
    "too small": (
        [pod(0), pod(1, "Pending", conditions=[UNSCHEDULABLE])],
        "1 of 2 pods run; 1 Pending (Unschedulable: 0/2 nodes are available: 2 Insufficient cpu)",
    ),
    "both wait for the same": (
        [pod(node, "Pending", **waiting("ContainerCreating")) for node in (0, 1)],
        "0 of 2 pods run; 2 Pending (ContainerCreating)",
    ),
    "a first try": (
        [pod(0), pod(1, "Pending", **waiting("ErrImagePull", "connection\n refused"))],
        "1 of 2 pods run; 1 Pending (ErrImagePull: connection refused)",
    ),
    "a replaced one": ([pod(0, "Failed", **ended(1)), pod(0), pod(1)], "2 of 2 pods run"),
    "one that ended well": (
        [pod(0), pod(1, "Succeeded", **ended(0, "Completed"))],
        "1 of 2 pods run; 1 Succeeded (Completed)",
    ),
    "no status": ([pod(0), {"metadata": pod(1)["metadata"]}], "1 of 2 pods run; 1 Unknown"),
    "a stranger": ([pod(0), {"metadata": {"name": "x"}}], "1 of 2 pods run; 1 not made yet"),
}  # fmt: skip


@pytest.mark.parametrize(("pods", "line"), STATUS.values(), ids=STATUS.keys())
def test_somebody_who_waits_is_told(fake: FakeKubernetes, pods: list[dict[str, Any]], line: str) -> None:
    with launched(fake) as launcher:
        fake.pods = pods
        wait_until(lambda: launcher.status() == line, LIMIT_S, launcher.status)
        assert launcher.failure() is None


def test_before_and_after(fake: FakeKubernetes) -> None:
    launcher = KubernetesLauncher(Kubernetes(kubeconfig=fake.kubeconfig))
    for _ in range(2):
        assert (launcher.nodes, launcher.status(), launcher.failure(), launcher.logs()) == (1, "no pods", None, {})
        assert not launcher.restart(0)
        launcher.close(0.0)
    assert fake.requests == []


@pytest.mark.fault("F51")
def test_pods_that_are_taken_away_are_no_failure(fake: FakeKubernetes) -> None:
    deleted = pod(0, "Failed", **ended(4))
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    disrupted = pod(1, "Failed", conditions=[{"type": "DisruptionTarget", "status": "True"}], **ended(137))
    evicted = pod(2, "Failed", reason="Evicted", message="The node was low on resource: memory.")
    fake.pods = [deleted, disrupted, evicted]
    with launched(fake, nodes=3) as launcher:
        wait_until(lambda: "3 Terminating" in launcher.status().replace("1 ", "3 "), LIMIT_S, launcher.status)
        assert "Evicted: The node was low on resource: memory" in launcher.status()
        assert launcher.failure() is None


def test_a_volume_that_does_not_come_is_told(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher:
        fake.pods = [pod(0), pod(1, "Pending", **waiting("ContainerCreating"))]
        mine = {"name": fake.pods[1]["metadata"]["name"]}
        fake.pods[1]["metadata"]["name"] = mine["name"] = f"{run_of(fake)}-1-x"
        fake.events = [
            {"involvedObject": mine, "reason": "FailedMount", "message": "no such volume", "lastTimestamp": "2"},
            {"involvedObject": mine, "reason": "Older", "message": "x", "lastTimestamp": "1"},
            {"involvedObject": {"name": "another"}, "reason": "Other", "message": "y", "lastTimestamp": "3"},
        ]
        line = "1 of 2 pods run; 1 Pending (FailedMount: no such volume)"
        wait_until(lambda: launcher.status() == line, LIMIT_S, launcher.status)


def test_a_job_that_a_queue_holds_back_is_told(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher:
        next(iter(fake.objects["jobs"].values()))["spec"]["suspend"] = True
        line = "0 of 2 pods run; 2 not made yet (the Job is suspended)"
        wait_until(lambda: launcher.status() == line, LIMIT_S, launcher.status)


def test_a_server_that_falls_silent_says_nothing_about_the_pods(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher:
        fake.refuses["GET pods"] = (500, "etcd is gone")
        line = "the pods cannot be seen: 500 Internal Server Error: etcd is gone"
        wait_until(lambda: launcher.status() == line, LIMIT_S, launcher.status)
        assert launcher.failure() is None
        fake.refuses.clear()
        wait_until(lambda: "0 of 2 pods run" in launcher.status(), LIMIT_S, launcher.status)


@pytest.mark.parametrize("odd", [{"conditions": [None]}, {"conditions": 5}, {"containerStatuses": [{"state": "x"}]}])
def test_an_answer_that_nobody_understands_is_told_and_the_next_is_heard(fake: FakeKubernetes, odd: Any) -> None:
    with launched(fake) as launcher:
        fake.pods = [pod(0), pod(1, "Running", **odd)]
        assert "Kubernetes says something about the pods that is not understood (" in failure_of(launcher)
        fake.pods = [pod(0), pod(1)]
        wait_until(lambda: launcher.status() == "2 of 2 pods run", LIMIT_S, launcher.status)
        assert launcher.failure() is None


def test_who_may_not_see_events_does_without(fake: FakeKubernetes) -> None:
    fake.refuses["GET events"] = (403, "events is forbidden")
    with launched(fake) as launcher:
        wait_until(lambda: launcher.status() == "0 of 2 pods run; 2 not made yet", LIMIT_S, launcher.status)


# Failing.


@pytest.mark.fault("F51")
@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("ImagePullBackOff", " Is image= right, may the hosts pull it (pull_secret=), or was it loaded on them?"),
        ("InvalidImageName", " Correct image=."),
        ("ErrImageNeverPull", " Load the image on the hosts."),
        ("CreateContainerConfigError", ""),
        ("CreateContainerError", ""),
    ],
)
def test_a_pod_that_never_starts_is_told(fake: FakeKubernetes, reason: str, hint: str) -> None:
    with launched(fake) as launcher:
        fake.pods = [pod(0), pod(1, "Pending", **waiting(reason, "why it is so"))]
        name = fake.pods[1]["metadata"]["name"]
        assert failure_of(launcher) == f"node 1: pod {name} does not start ({reason}: why it is so).{hint}"


@pytest.mark.fault("F51")
@pytest.mark.parametrize(
    ("code", "reason", "log", "says"),
    [
        (2, "Error", "a\n--import nope: no\n", "ended with exit code 2 (Error). It wrote: a\n--import nope: no"),
        (3, "Error", "", "ended with exit code 3 (Error). It wrote nothing."),
        (
            137, "OOMKilled", "x",
            "ended with exit code 137 (OOMKilled). Was it killed for its memory? Ask for more with memory=, or run "
            "fewer workers. It wrote: x",
        ),
        (1, "Error", None, "ended with exit code 1 (Error). It wrote: (its log cannot be read: 404 Not Found: no log)"),
    ],
)  # fmt: skip
def test_a_pod_that_ends_badly_is_told_with_its_last_words(
    fake: FakeKubernetes, code: int, reason: str, log: str | None, says: str
) -> None:
    with launched(fake) as launcher:
        bad = pod(1, "Failed", **ended(code, reason))
        name = bad["metadata"]["name"]
        if log is not None:
            fake.logs[name] = log
        fake.pods = [pod(0), bad]
        assert failure_of(launcher) == f"node 1: pod {name} {says}"
        looks(fake)
        assert len(fake.asked(f"GET pods {name} log")) == 1, "asked for once"


@pytest.mark.fault("F51")
def test_pods_that_a_quota_forbids_are_told(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher:
        run = run_of(fake)
        fake.pods = [pod(0)]
        fake.events = [{"involvedObject": {"kind": "Job", "name": run}, "reason": "FailedCreate", "message": QUOTA}]
        assert failure_of(launcher) == f"pods could not be made: FailedCreate: {QUOTA}"
        # Pods are asked for before events: the first look at these events may have missed the pod.
        told = f"1 of 2 pods run; 1 not made yet (FailedCreate: {QUOTA})"
        wait_until(lambda: launcher.status() == told, LIMIT_S, launcher.status)
        fake.pods = [pod(0), pod(1)]
        wait_until(lambda: launcher.failure() is None, LIMIT_S)


def test_an_accident_while_pods_are_made_is_waited_for(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher:
        event = {"reason": "FailedCreate", "message": "Error creating: Timeout: request did not complete"}
        fake.events = [{"involvedObject": {"name": run_of(fake)}, **event}]
        wait_until(lambda: "Timeout" in launcher.status(), LIMIT_S, launcher.status)
        assert launcher.failure() is None


def test_a_job_that_has_given_up_is_told(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher:
        run, (job,) = run_of(fake), fake.objects["jobs"].values()
        gave_up = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"}
        job["status"] = {"conditions": [{"type": "Suspended", "status": "False"}, gave_up]}
        assert failure_of(launcher) == f"job {run} failed (BackoffLimitExceeded: too often)"
        assert not launcher.restart(0)


# Rights.


def test_the_page_asks_for_exactly_the_rights_that_are_used(fake: FakeKubernetes) -> None:
    role = yaml.safe_load(re.search(r"```yaml\n(.*?kind: Role\n.*?)```", PAGE.read_text(), re.DOTALL)[1])  # type: ignore[index]
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    with launched(fake) as launcher:
        wait_until(lambda: bool(fake.asked("GET events")), LIMIT_S)  # while there are no pods
        fake.pods = [pod(0), pod(1)]
        looks(fake)
        launcher.restart(0)
        wait_until(lambda: bool(fake.asked("DELETE pods")), LIMIT_S)
        launcher.logs()
    used = set()
    for request in fake.requests[1:]:
        method, kind, *rest = request.what.split()
        resource = f"{kind}/{rest[1]}" if rest[1:] else kind
        verb = {"POST": "create", "DELETE": "delete", "GET": "get" if rest else "list"}[method]
        used.add(("batch" if "/apis/batch/" in request.path else "", resource, verb))
    assert used == granted


# Replacing.


def test_a_lost_node_is_deleted_at_once_and_what_it_said_is_forgiven(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher:
        bad, stuck = pod(0, "Failed", **ended(1)), pod(1)
        fake.pods = [bad, stuck]
        failure_of(launcher)
        assert launcher.restart(0)
        assert launcher.failure() is None
        assert launcher.restart(1)
        wait_until(lambda: len(fake.asked("DELETE pods")) == 1, LIMIT_S)
        (deleted,) = fake.asked("DELETE pods")
        assert deleted.what == f"DELETE pods {stuck['metadata']['name']}", "one that ended stays for its log"
        assert deleted.query["gracePeriodSeconds"] == "0"
        fake.pods = [bad, pod(1)]
        looks(fake)
        assert launcher.failure() is None
        fake.pods = [bad, pod(0, "Failed", **ended(2)), pod(1)]
        assert "exit code 2" in failure_of(launcher), "its successor is not forgiven"


def test_a_deletion_that_fails_is_tried_again(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher:
        fake.pods = [pod(0), pod(1)]
        looks(fake)
        fake.refuses["DELETE pods"] = (500, "not now")
        assert launcher.restart(1)
        wait_until(lambda: len(fake.asked("DELETE pods")) > 1, LIMIT_S)
        fake.refuses.clear()
        wait_until(lambda: len(fake.pods) == 1, LIMIT_S)


@pytest.mark.parametrize(
    ("status", "possible"),
    [
        ({}, [True, True, True]),
        ({"completedIndexes": "0,2"}, [False, True, False]),
        ({"failedIndexes": "1-2"}, [True, False, False]),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, [False, False, False]),
        ({"conditions": [{"type": "Complete", "status": "False"}]}, [True, True, True]),
        ({"completedIndexes": "x,-,1-"}, [True, True, True]),
    ],
)
def test_a_node_that_its_job_has_given_up_does_not_come_back(
    fake: FakeKubernetes, status: dict[str, Any], possible: list[bool]
) -> None:
    with launched(fake, nodes=3) as launcher:
        next(iter(fake.objects["jobs"].values()))["status"] = status
        looks(fake)
        assert [launcher.restart(node) for node in range(3)] == possible
        assert not launcher.restart(3)
        assert not launcher.restart(-1)


def test_with_a_job_per_node_each_is_asked_about_its_own(fake: FakeKubernetes) -> None:
    fake.minor = "20"
    with launched(fake) as launcher:
        fake.objects["jobs"][f"{run_of(fake)}-1"]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
        looks(fake)
        assert [launcher.restart(node) for node in range(2)] == [True, False]


# Logs.


def test_logs_are_told_by_pod(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher:
        fake.pods = [pod(0), pod(1), pod(2)]
        names = [each["metadata"]["name"] for each in fake.pods]
        fake.logs = {names[0]: "first\n", names[1]: "\x1b[31msecond\x07\n"}
        looks(fake)
        assert launcher.logs() == {names[0]: "first\n", names[1]: "second\n"}
        (asked, *_) = fake.asked(f"GET pods {names[0]} log")
        assert asked.query["tailLines"] == "100"
        assert int(asked.query["limitBytes"]) <= 64 * 1024


# Closing.


def test_close_leaves_nothing_and_may_be_called_twice(fake: FakeKubernetes) -> None:
    with launched(fake) as launcher:
        run = run_of(fake)
        launcher.close(LIMIT_S)
        launcher.close(LIMIT_S)
    assert fake.objects == {"jobs": {}, "secrets": {}, "services": {}}
    assert [each.what for each in fake.asked("DELETE")] == [
        f"DELETE {each} {run}" for each in ("jobs", "secrets", "services")
    ]
    assert {each.query["propagationPolicy"] for each in fake.asked("DELETE")} == {"Background"}


def test_what_is_gone_already_is_no_problem(fake: FakeKubernetes, caplog: pytest.LogCaptureFixture) -> None:
    with launched(fake):
        fake.objects = {"jobs": {}, "secrets": {}, "services": {}}
    assert caplog.records == []


def test_what_cannot_be_deleted_is_told_with_the_command(
    fake: FakeKubernetes, caplog: pytest.LogCaptureFixture
) -> None:
    with launched(fake):
        run = run_of(fake)
        fake.refuses["DELETE"] = (403, "you may not")
    (record,) = caplog.records
    assert record.getMessage() == (
        "kubernetes: 3 objects may still be there (403 Forbidden: you may not). Delete them: "
        f"kubectl delete --namespace research job/{run} secret/{run} service/{run}"
    )


def test_close_waits_for_the_pods_within_its_limit(fake: FakeKubernetes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "clusterenv")
    with launched(fake) as launcher:
        fake.pods = [pod(0)]
        fake.refuses["DELETE jobs"] = (200, "fine")  # and the pods stay
        began = time.monotonic()
        launcher.close(0.3)
        assert 0.3 <= time.monotonic() - began < LIMIT_S
    assert "are deleted and still ending" in caplog.text


def test_close_does_not_wait_for_a_server_that_hangs(fake: FakeKubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    with launched(fake, nodes=1) as launcher:
        monkeypatch.setattr(kubernetes_api, "LIMITS_S", (0.2, 0.2))
        monkeypatch.setattr(launcher_module, "_END_S", 0.5)
        fake.delay_s = 1.0
        began = time.monotonic()
        launcher.close(0.1)
        assert time.monotonic() - began < LIMIT_S
        fake.delay_s = 0.0


# Dry runs.


def test_the_dry_run_is_the_manifest(fake: FakeKubernetes) -> None:
    launcher = KubernetesLauncher(Kubernetes(nodes=2, workers=2, memory="4Gi", namespace="my-team"))
    script = launcher.script(JOB)
    assert script == GOLDEN.read_text()
    job, secret, service = yaml.safe_load_all(script)
    assert [job["kind"], secret["kind"], service["kind"]] == ["Job", "Secret", "Service"]
    assert secret["stringData"] == {"keys": "<the keys of the run>"}
    assert "canary" not in script
    assert fake.requests == [], "a dry run asks nobody"


def test_the_doctor_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--cluster", "k8s:nodes=8,bind=10.0.0.1:5555", "--dry-run"]) == OK
    told = capsys.readouterr()
    assert told.err == ""
    assert "completionMode: Indexed" in told.out
    assert "tcp+curve://10.0.0.1:5555" in told.out


@pytest.mark.parametrize("command", re.findall(r"clusterenv (doctor .*--dry-run)", PAGE.read_text()))
def test_a_dry_run_of_the_page_works(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command.split()) == OK
    assert "kind: Secret" in capsys.readouterr().out


def test_the_doctor_names_what_is_wrong(fake: FakeKubernetes, capsys: pytest.CaptureFixture[str]) -> None:
    fake.refuses["POST jobs"] = (403, 'jobs.batch is forbidden: User "u" cannot create resource "jobs"')
    cluster = f"k8s:nodes=2,bind=127.0.0.1,kubeconfig={fake.kubeconfig}"
    assert main(["doctor", "--cluster", cluster]) == NOT_STARTED
    assert 'User "u" cannot create resource "jobs"' in capsys.readouterr().err
