"""What Kubernetes is asked for: every manifest fits the schemas of today, and promises are kept in it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv import __version__
from clusterenv.cli.exits import USAGE
from clusterenv.clusters import Kubernetes
from clusterenv.launchers import manifests
from clusterenv.testing.contracts import KEYS

ROOT = pathlib.Path(__file__).parents[2]
RUN = "clusterenv-0123abcd"
COMMAND = ["python3", "-m", "clusterenv", "node", "--head", "tcp+curve://10.0.0.1:5555", "--key-file", "/k"]
OWNERS = [manifests.owner({"metadata": {"name": RUN, "uid": "11111111-2222"}})]
CLUSTERS = {
    "the smallest": Kubernetes(),
    "everything": Kubernetes(
        nodes=8, workers=4, cpus=6, memory="4Gi", shm="512Mi", image="registry.example:5000/me/envs:1",
        selector=("pool=cpu", "example.com/zone=a", "spot="), tolerate=("spot", "dedicated=rl", "odd="),
        priority="high", pull_secret="my-registry", namespace="my-team",
    ),
}  # fmt: skip


def made(cluster: Kubernetes) -> dict[str, dict[str, Any]]:
    return {
        "indexed": manifests.indexed_job(cluster, RUN, COMMAND),
        "plain": manifests.plain_job(cluster, RUN, COMMAND, 7),
        "secret": manifests.secret(RUN, KEYS, OWNERS),
        "service": manifests.service(RUN, OWNERS),
    }


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("kind", ["indexed", "plain", "secret", "service"])
@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_it_fits_the_schemas_of_today(cluster: Kubernetes, kind: str) -> None:
    kubernetes_validate.validate(made(cluster)[kind], kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("where", [["spec"], ["spec", "template", "spec"], ["metadata"]])
def test_a_misspelt_field_would_not_fit(where: list[str]) -> None:
    job = place = made(CLUSTERS["everything"])["indexed"]
    for word in where:
        place = place[word]
    place["lenght"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


def test_an_indexed_job_keeps_every_node_alive_by_itself() -> None:
    spec = made(CLUSTERS["everything"])["indexed"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 8, 8)
    assert (spec["backoffLimitPerIndex"], spec["podReplacementPolicy"]) == (manifests.FAILURES, "Failed")
    ignore, give_up = spec["podFailurePolicy"]["rules"]
    assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert give_up["action"] == "FailIndex"
    assert give_up["onExitCodes"] == {"containerName": "node", "operator": "In", "values": [USAGE]}
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "which such rules need"
    assert spec["ttlSecondsAfterFinished"] > 0


def test_a_plain_job_has_one_pod_with_the_number_of_its_node() -> None:
    job = made(CLUSTERS["everything"])["plain"]
    assert job["metadata"]["name"] == f"{RUN}-7"
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (1, 1)
    assert job["spec"]["template"]["metadata"]["labels"][manifests.NODE_LABEL] == "7"
    assert (pod_of(job)["hostname"], pod_of(job)["subdomain"]) == (f"{RUN}-7", RUN)
    new = {"completionMode", "backoffLimitPerIndex", "podFailurePolicy", "podReplacementPolicy"}
    assert not new & set(job["spec"]), "an old server would drop them without a word"


@pytest.mark.parametrize("kind", ["indexed", "plain"])
def test_a_pod_is_as_the_restricted_standard_wants_it(kind: str) -> None:
    pod = pod_of(made(CLUSTERS["everything"])[kind])
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == manifests.USER
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(pod)
    assert not {"ports", "env", "envFrom", "args"} & set(container), "nothing listens, and no variable holds a secret"
    assert all("hostPath" not in volume for volume in pod["volumes"])


def test_the_keys_are_in_the_secret_and_nowhere_else() -> None:
    found = made(CLUSTERS["everything"])
    secret = found.pop("secret")
    assert secret["stringData"] == {"keys": KEYS}
    assert secret["immutable"] is True
    assert "canary" not in json.dumps(found)
    keys, shm = pod_of(found["indexed"])["volumes"]
    assert keys == {"name": "keys", "secret": {"secretName": RUN, "defaultMode": 0o400}}
    assert shm == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}}
    mounts = {each["mountPath"]: each for each in pod_of(found["indexed"])["containers"][0]["volumeMounts"]}
    assert mounts[manifests.KEY_FILE] == {
        "name": "keys", "mountPath": manifests.KEY_FILE, "subPath": "keys", "readOnly": True,
    }  # fmt: skip
    assert mounts["/dev/shm"]["name"] == "shm"


def test_secret_and_service_belong_to_the_jobs() -> None:
    found = made(CLUSTERS["everything"])
    for kind in ("secret", "service"):
        (owner,) = found[kind]["metadata"]["ownerReferences"]
        assert owner == {"apiVersion": "batch/v1", "kind": "Job", "name": RUN, "uid": "11111111-2222"}


def test_the_service_names_the_pods_in_the_dns() -> None:
    found = made(CLUSTERS["everything"])
    spec = found["service"]["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    for kind in ("indexed", "plain"):
        template = found[kind]["spec"]["template"]
        assert spec["selector"].items() <= template["metadata"]["labels"].items()
        assert template["spec"]["subdomain"] == found["service"]["metadata"]["name"]


@pytest.mark.parametrize(
    ("cluster", "asked"),
    [
        (Kubernetes(), {"requests": {"cpu": "1"}}),
        (Kubernetes(workers=3), {"requests": {"cpu": "3"}}),
        (Kubernetes(workers=3, cpus=5), {"requests": {"cpu": "5"}}),
        (Kubernetes(memory="2Gi"), {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}),
    ],
)
def test_what_is_asked_for_per_pod(cluster: Kubernetes, asked: dict[str, Any]) -> None:
    assert pod_of(made(cluster)["indexed"])["containers"][0]["resources"] == asked


def test_where_pods_may_run() -> None:
    pod = pod_of(made(CLUSTERS["everything"])["indexed"])
    assert pod["nodeSelector"] == {"pool": "cpu", "example.com/zone": "a", "spot": ""}
    assert pod["tolerations"] == [
        {"key": "spot", "operator": "Exists"},
        {"key": "dedicated", "operator": "Equal", "value": "rl"},
        {"key": "odd", "operator": "Equal", "value": ""},
    ]
    assert (pod["priorityClassName"], pod["imagePullSecrets"]) == ("high", [{"name": "my-registry"}])
    assert not {"nodeSelector", "tolerations", "priorityClassName", "imagePullSecrets"} & set(
        pod_of(made(CLUSTERS["the smallest"])["indexed"])
    )


@pytest.mark.threat("T16")
@given(st.lists(st.text(max_size=20), max_size=4))
def test_words_of_a_command_stay_words(words: list[str]) -> None:
    """There is no shell and no template in between."""
    job = manifests.indexed_job(Kubernetes(), RUN, words)
    assert pod_of(json.loads(json.dumps(job)))["containers"][0]["command"] == words


@pytest.mark.parametrize(("age_s", "alive"), [(0.0, True), (20.0, True), (40.0, False), (None, False)])
@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe"])
def test_the_probes_tell_whether_the_node_is_in_touch(
    probe: str, age_s: float | None, alive: bool, tmp_path: pathlib.Path
) -> None:
    cluster = Kubernetes(python=sys.executable)
    command = pod_of(made(cluster)["indexed"])["containers"][0][probe]["exec"]["command"]
    assert manifests.ALIVE_FILE in command[-1]
    file = tmp_path / "alive"
    if age_s is not None:
        file.touch()
        os.utime(file, (0.0, time.time() - age_s))
    words = [*command[:-1], command[-1].replace(manifests.ALIVE_FILE, str(file))]
    done = subprocess.run(words, capture_output=True, check=False)
    assert (done.returncode == 0, done.stderr) == (alive, b""), "what a probe writes is shown to the user"


def test_the_image_of_the_dockerfile_is_the_one_that_pods_ask_for() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert f"docker build --tag {Kubernetes().image} ." in text
    assert Kubernetes().image == f"clusterenv:{__version__}"
    assert f"USER {manifests.USER}:{manifests.USER}" in text
    assert re.findall(r"^FROM (.*)", text, re.MULTILINE) == ["python:3.11-slim"]
    copied = [word for line in re.findall(r"^COPY (.*)", text, re.MULTILINE) for word in line.split()[:-1]]
    assert all((ROOT / word).exists() for word in copied)
    let_in = re.findall(r"^!(.*)", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(let_in) == sorted(copied)
