"""Pods of a Kubernetes cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from clusterenv._version import __version__
from clusterenv.clusters.base import MAX_WORKERS_PER_NODE, Remote
from clusterenv.clusters.checks import check_whole, refused
from clusterenv.errors import ConfigError

# As Kubernetes has them: names that fit into DNS, labels of hosts, and amounts of memory. A number without a unit would
# be bytes, which nobody means.
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DOMAIN = rf"{_LABEL.pattern}(\.{_LABEL.pattern})*"
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}\Z){_DOMAIN}")
_WORD = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_SELECTOR = re.compile(rf"(?=.{{1,381}}\Z)({_DOMAIN}/)?{_WORD}=({_WORD})?")
_TAINT = re.compile(rf"{_SELECTOR.pattern}|(?=.{{1,317}}\Z)({_DOMAIN}/)?{_WORD}")
_AMOUNT = re.compile(r"[1-9][0-9]{0,5}(\.[0-9]{1,3})?(Ki|Mi|Gi|Ti|k|M|G|T)")
# [registry[:port]/]path[:tag][@digest]
_PART = r"[a-z0-9]+([._-]{1,2}[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?=.{{1,512}}\Z)([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{{1,5}})?/)?{_PART}(/{_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes(Remote):
    """Pods of a Kubernetes cluster, one node each.

    Attributes:
        image: what the pods run: a Python with clusterenv and the packages of the environments. The default is what
            `docker build --tag clusterenv:VERSION .` makes of the Dockerfile of ClusterEnv.
        namespace: where everything is made; "" means that of the context, or of the pod in which the head runs.
        context: of the kubeconfig; "" means the current one.
        kubeconfig: a file in place of KUBECONFIG and ~/.kube/config. Without any of them, the head takes the service
            account of the pod in which it runs.
        cpus: CPUs asked for per pod. 0 means as many as `workers`, and 1 if that is 0 too. `workers=0` means one worker
            per CPU that was asked for, and one per core of the host if none was.
        memory: asked for and granted per pod, as Kubernetes writes it: "4Gi". "" asks for none.
        shm: how large /dev/shm may grow, which holds the observations. It counts as memory of the pod.
        selector: labels that a host must have, as "pool=cpu".
        tolerate: taints of hosts to put up with, as "dedicated=rl", or "spot" for every value of it.
        priority: the PriorityClass of the pods; "" leaves it to Kubernetes.
        pull_secret: the Secret with which the image is pulled; "" for none.

    Example:
        >>> Kubernetes(nodes=8, image="registry.example/me/envs:1", cpus=4).text
        'k8s:nodes=8,image=registry.example/me/envs:1,cpus=4'
    """

    kind: ClassVar[str] = "k8s"

    image: str = f"clusterenv:{__version__}"
    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""
    cpus: int = 0
    memory: str = ""
    shm: str = "1Gi"
    selector: tuple[str, ...] = ()
    tolerate: tuple[str, ...] = ()
    priority: str = ""
    pull_secret: str = ""
    wait_s: float | None = 600.0

    def _check(self) -> None:
        if not self.image or not self.shm:
            raise ConfigError(f"k8s: image={self.image!r} and shm={self.shm!r} may not be empty. Leave the key out.")
        self._check_each("image", _IMAGE, "the name of an image, as in 'registry.example/me/envs:1'")
        self._check_each("namespace", _LABEL, "1 to 63 small letters, digits and -, as in 'my-team'")
        for name in ("priority", "pull_secret"):
            self._check_each(name, _SUBDOMAIN, "1 to 253 small letters, digits, - and ., as in 'my-name'")
        for name in ("memory", "shm"):
            self._check_each(name, _AMOUNT, "an amount with its unit, as in '512Mi' or '4Gi'")
        self._check_each("selector", _SELECTOR, "a label of hosts and its value, as in 'pool=cpu'")
        self._check_each("tolerate", _TAINT, "a taint of hosts, as in 'spot' or 'dedicated=rl'")
        check_whole(self, "cpus", 0, MAX_WORKERS_PER_NODE)

    def _check_each(self, name: str, form: re.Pattern[str], must_be: str) -> None:
        given = getattr(self, name)
        for value in given if isinstance(given, tuple) else [given] if given else []:
            if not form.fullmatch(value):
                raise refused(self, name, value, must_be)

    @property
    def interpreter(self) -> str:
        """The Python of the image; "python3" unless another was named."""
        return self.python or "python3"
