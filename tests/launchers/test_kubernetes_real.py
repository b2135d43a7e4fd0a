"""Nodes in the pods of a real Kubernetes of two hosts, which `scripts/test-kubernetes` starts."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
import yaml

from clusterenv import make_vec
from clusterenv.cli.exits import LOST, OK
from clusterenv.cli.main import main
from clusterenv.clusters import Kubernetes
from clusterenv.errors import LaunchError, WorkersMissing
from clusterenv.launchers import kubernetes as launcher_module
from clusterenv.launchers import manifests
from clusterenv.launchers.kubernetes import KubernetesLauncher
from clusterenv.launchers.kubernetes_api import Api
from clusterenv.node.joining import Joining
from tests.conformance.test_detached import ARRAYS
from tests.policy.agents import CleanRL
from tests.services import kubernetes_folder
from tests.zoo import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterenv import ClusterEnv

# A pod is there after some seconds, and a host that is busy needs more.
LIMIT_S = 120.0
CARTPOLE = "CartPole-v1"
pytestmark = [pytest.mark.timeout(300), pytest.mark.slow, pytest.mark.xdist_group("kubernetes")]


@dataclass(frozen=True)
class Service:
    """The Kubernetes that runs for these tests."""

    folder: pathlib.Path

    def cluster(self, **options: Any) -> Kubernetes:
        """Two nodes, as a user without any special right asks for them."""
        head = (self.folder / "head").read_text().strip()
        usual = {"nodes": 2, "workers": 1, "image": "clusterenv:test", "bind": head, "wait_s": LIMIT_S}
        return Kubernetes(**{"kubeconfig": str(self.folder / "researcher"), **usual, **options})

    def admin(self, namespace: str = "research") -> Api:
        """Somebody who may see everything."""
        return Api(Kubernetes(kubeconfig=str(self.folder / "admin"), namespace=namespace))

    def left(self, namespace: str = "research") -> list[str]:
        """What there is of ours."""
        ours = {"app.kubernetes.io/name": "clusterenv"}
        with contextlib.closing(self.admin(namespace)) as api:
            options = {"label_selector": "app.kubernetes.io/name=clusterenv"}
            secrets = api._items(api._core.list_namespaced_secret, **options)
            services = api._items(api._core.list_namespaced_service, **options)
            found = [*api.pods(ours), *api.jobs(ours), *secrets, *services]
        return [each["metadata"]["name"] for each in found]

    def pods(self) -> list[dict[str, Any]]:
        """The pods of ours, those of the first node first."""
        with contextlib.closing(self.admin()) as api:
            found = api.pods({"app.kubernetes.io/name": "clusterenv"})
        return sorted(found, key=lambda pod: int(pod["metadata"]["labels"][manifests.NODE_LABEL]))


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(kubernetes_folder())
    assert made.left() == []
    yield made
    for namespace in ("research", "small"):
        wait_until(lambda space=namespace: not made.left(space), 60.0, lambda: f"left: {made.left()}")  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_module, "LOOK_S", 0.3)


def test_steps_and_rollouts_are_those_of_one_process(service: Service) -> None:
    with make_vec(CARTPOLE, 4, cluster="inproc") as here, make_vec(CARTPOLE, 4, cluster=service.cluster()) as there:
        np.testing.assert_equal(here.reset(seed=3), there.reset(seed=3))
        here.action_space.seed(1)
        for _ in range(100):
            chosen = here.action_space.sample()
            np.testing.assert_equal(here.step(chosen), there.step(chosen))
        for left, right in zip(*map(_played, (here, there)), strict=True):
            for name in ARRAYS:
                np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def _played(envs: ClusterEnv) -> list[Any]:
    """Two rollouts with a new version in between; the policy runs in the pods."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    policy = CleanRL(4, 2)
    envs.reset(seed=3)
    envs.attach(policy, seed=5, sync="on-change")
    batches = [envs.rollout(30)]
    with torch.no_grad():
        for tensor in policy.actor.parameters():
            tensor.add_(0.1)
    envs.publish(policy)
    return [*batches, envs.rollout(30)]


def test_how_pods_look_from_outside(service: Service) -> None:
    with make_vec(CARTPOLE, 2, cluster=service.cluster(memory="1Gi")) as envs:
        envs.reset(seed=0)
        pods = service.pods()
        run = pods[0]["metadata"]["labels"]["app.kubernetes.io/instance"]
        assert {pod["spec"]["nodeName"] for pod in pods} == {"worker-0", "worker-1"}, "one on each host"
        assert [pod["spec"]["hostname"] for pod in pods] == [f"{run}-0", f"{run}-1"]
        assert "secret" not in json.dumps([pod["spec"]["containers"] for pod in pods])
        for node, each in enumerate(_node_processes(run)):
            assert set(each.uids()) == {manifests.USER}, "not root"
            assert each.cmdline()[each.cmdline().index("--index") + 1] == str(node)
            root = pathlib.Path(f"/proc/{each.pid}/root")
            keys = (root / manifests.KEY_FILE[1:]).stat()
            assert (keys.st_uid, keys.st_gid, keys.st_mode & 0o777) == (0, manifests.USER, 0o440)
            assert not (root / "var/run/secrets/kubernetes.io").exists(), "no way to the API of Kubernetes"
            shm = os.statvfs(root / "dev/shm")
            assert shm.f_blocks * shm.f_frsize > 64 * 2**20
            assert (root / manifests.ALIVE_FILE[1:]).exists()
            assert [one.laddr for one in each.net_connections("inet") if one.status == "LISTEN"] == []
        with contextlib.closing(service.admin()) as api:
            wait_until(lambda: _names(api, run) == {f"{run}-0", f"{run}-1"}, 30.0, lambda: str(_names(api, run)))
        wait_until(lambda: all(map(_ready, service.pods())), 60.0, lambda: "a joined node is ready")


def _names(api: Api, run: str) -> set[str]:
    """What the headless Service tells the DNS of the cluster."""
    found = api._json(api._core.read_namespaced_endpoints, run, api.namespace)
    return {each["hostname"] for subset in found.get("subsets") or [] for each in subset.get("addresses") or []}


def _ready(pod: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"]["conditions"])


def _node_processes(run: str) -> list[psutil.Process]:
    """The nodes of a run, seen from this host: their name for the host is that of the pod."""
    found = {}
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = each.cmdline()
            if words[:4] == ["python3", "-m", "clusterenv", "node"] and "--index" in words:
                hostname = pathlib.Path(f"/proc/{each.pid}/root/etc/hostname").read_text().strip()
                if hostname.startswith(run):
                    found[hostname] = each
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("how", ["deleted", "killed"])
def test_a_lost_pod_is_replaced_and_rejoins(service: Service, how: str) -> None:
    with make_vec(CARTPOLE, 4, cluster=service.cluster()) as envs:
        envs.reset(seed=0)
        before = service.pods()
        if how == "deleted":
            with contextlib.closing(service.admin()) as api:
                api.delete("Pod", before[1]["metadata"]["name"])
        else:
            run = before[1]["metadata"]["labels"]["app.kubernetes.io/instance"]
            _node_processes(run)[1].kill()
        lost, end = np.zeros(4, bool), time.monotonic() + LIMIT_S
        while not lost.any() and time.monotonic() < end:
            infos = envs.step(np.ones(4, int))[4]
            lost = infos.get("worker_lost", np.zeros(4, bool))
        assert lost.tolist() == [False, False, True, True], "only its own slots"
        for _ in range(20):
            assert not envs.step(np.zeros(4, int))[4].get("worker_lost", np.zeros(4, bool)).any()
        after = [pod for pod in service.pods() if pod["status"]["phase"] == "Running"]
        names = [[pod["metadata"]["name"] for pod in pods] for pods in (before, after)]
        assert names[0][0] == names[1][0]
        assert names[0][1] != names[1][-1]


def test_close_leaves_nothing(service: Service) -> None:
    with make_vec(CARTPOLE, 2, cluster=service.cluster()) as envs:
        envs.reset(seed=0)
        assert len(service.left()) == 6, "two pods, two Jobs, a Secret, a Service"
    began = time.monotonic()
    wait_until(lambda: not service.left(), 60.0)
    assert time.monotonic() - began < 60.0


def test_logs_are_those_of_the_nodes(service: Service) -> None:
    joining = Joining(service.cluster())
    try:
        hosts, _ = joining.gather(2)
        assert [host.hello.index for host in hosts] == [0, 1]
        assert joining._launcher.status() in ("2 of 2 pods run", "the Jobs are made")
        wait_until(lambda: len(joining._launcher.logs()) == 2, 30.0)
    finally:
        joining.close(5.0)


HEAD = """
import sys
from clusterenv import make_vec
from clusterenv.clusters import parse_remote
envs = make_vec("CartPole-v1", 2, cluster=parse_remote(sys.argv[1]))
envs.reset(seed=0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_head_that_is_killed_leaves_no_node_and_all_belongs_to_the_jobs(service: Service) -> None:
    head = subprocess.Popen(
        [sys.executable, "-c", HEAD, service.cluster().text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert head.stdin
    assert head.stdout
    with head:
        try:
            assert head.stdout.readline() == "ready\n"
            first = {pod["metadata"]["name"] for pod in service.pods()}
        finally:
            head.send_signal(signal.SIGKILL)

    def codes() -> list[int]:
        """How the first two ended."""
        states = [
            each["status"]["containerStatuses"][0]["state"]
            for each in service.pods()
            if each["metadata"]["name"] in first
        ]
        return [state["terminated"]["exitCode"] for state in states if "terminated" in state]

    wait_until(lambda: codes() == [LOST, LOST], 60.0, lambda: str(codes()))
    with contextlib.closing(service.admin()) as api:
        for job in api.jobs({"app.kubernetes.io/name": "clusterenv"}):
            api.delete("Job", job["metadata"]["name"])
    # The fixture sees that the Secret and the Service go with them.


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"image": "localhost/no-such:1"}, r"node \d: pod \S+ does not start \(ImagePullBackOff: .*no-such:1"),
        ({"imports": ("no_such",)}, r"ended with exit code 2 .*It wrote: .*--import no_such: ModuleNotFoundError"),
        ({"python": "/no/python"}, r"node \d: pod \S+ .*no such file or directory"),
        ({"namespace": "small"}, "pods could not be made: FailedCreate: .*is forbidden: exceeded quota: one-pod"),
        ({"namespace": "kube-system"}, 'the Job \\S+ was refused: 403 Forbidden: .*User "researcher" cannot create'),
        ({"namespace": "no-such"}, "was refused: 403 Forbidden"),
    ],
    ids=["image", "module", "python", "quota", "rights", "namespace"],
)  # fmt: skip
def test_what_goes_wrong_is_told_in_the_words_of_kubernetes(
    service: Service, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(LaunchError, match=f"(?s){says}"):
        make_vec(CARTPOLE, 2, cluster=service.cluster(**options))


def test_a_stranger_is_refused(service: Service) -> None:
    cluster = service.cluster(kubeconfig=str(service.folder / "stranger"))
    with pytest.raises(LaunchError, match=r'403 Forbidden: jobs\.batch is forbidden: User "stranger" cannot create'):
        make_vec(CARTPOLE, 2, cluster=cluster)


def test_pods_that_find_no_place_are_told(service: Service) -> None:
    with pytest.raises(WorkersMissing, match=r"0 of 2 pods run; 2 Pending \(Unschedulable: .*Insufficient cpu"):
        make_vec(CARTPOLE, 2, cluster=service.cluster(cpus=64, wait_s=10.0))


def test_the_server_takes_the_manifests_of_a_dry_run(service: Service) -> None:
    launcher = KubernetesLauncher(service.cluster())
    job = Joining(service.cluster(), launcher)._job("tcp+curve://10.0.0.1:5555")
    parts = [*yaml.safe_load_all(launcher.script(job)), manifests.plain_job(service.cluster(), "run", ["x"], 0)]
    with contextlib.closing(Api(service.cluster())) as api:
        kinds = [api.create(part, dry_run=True)["kind"] for part in parts]
    assert kinds == ["Job", "Secret", "Service", "Job"]


def test_the_doctor_looks_at_the_pods(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--cluster", service.cluster().text, "--env-id", CARTPOLE]) == OK
    told = capsys.readouterr().out
    assert "ok  2 nodes joined" in told
    assert len(re.findall(r"ok  node clusterenv-[0-9a-f]{8}-[01]: \d+ cores, Python 3\.11", told)) == 2
    assert f"ok  {CARTPOLE} was built and stepped on every node" in told
