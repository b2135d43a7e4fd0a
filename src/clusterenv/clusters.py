"""Clusters on other hosts: how many nodes, where they come from, and what is asked for them.

Frozen values, checked once, when they are made. Each can be written as a short text that means the same:

    tcp:nodes=2,workers=1                          node processes on this host, reached by TCP
    ssh://a,user@b:2222?workers=4&python=/opt/py   hosts reached by SSH
    slurm:nodes=4,partition=cpu,time=2:00:00       a job of a Slurm cluster
    ray:nodes=4,workers=8                          hosts of a Ray cluster
    k8s:nodes=8,image=me/envs:1                    pods of a Kubernetes cluster
    join:nodes=2,bind=0.0.0.0:5555                 machines on which somebody starts the node by hand

In a text, a comma, an ampersand, a space or a percent sign inside a value is written as in an address of the web: %2C,
%26, %20, %25. A key that takes several values is given several times: `imports=my_envs,imports=more_envs`.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from urllib.parse import quote

from clusterenv._version import __version__
from clusterenv.amounts import parse_bytes
from clusterenv.errors import ConfigError, ConfigTypeError

if TYPE_CHECKING:
    from typing import Any

# What is said, by the head and by each node, whenever somebody has asked for it.
INSECURE = (
    "INSECURE: no encryption, and nobody proves who he is. Whoever can reach the head's port, or listen to this "
    "network, can read and change observations, actions and weights. Only for a network on which you trust everybody."
)

# Larger numbers are a slip of the pen.
MAX_NODES = 4096
MAX_WORKERS_PER_NODE = 1024

# A name starts with a letter or a digit, so that no program can take it for an option.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")
_NAMES = re.compile(rf"{_NAME.pattern}(,{_NAME.pattern})*")
_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_TIME = re.compile(r"[0-9]{1,7}(:[0-9]{1,2}){0,2}|[0-9]{1,4}-[0-9]{1,2}(:[0-9]{1,2}){0,2}|UNLIMITED|INFINITE")
# No blank, quote, hash or backslash: sbatch reads its #SBATCH lines with rules of its own for these.
_SBATCH = re.compile(r"--([a-z][a-z0-9-]*)(=[A-Za-z0-9_.,:;/@+=%*&|()\[\]!~^-]{1,500})?")

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

# Options of sbatch that we set, with the field that sets them; and those that we need for ourselves, or that would make
# sbatch do something else than hand in our script.
_TAKEN = {
    "account": "account",
    "cpus-per-task": "cpus",
    "nodes": "nodes",
    "ntasks": "nodes",
    "ntasks-per-node": "workers",
    "partition": "partition",
    "qos": "qos",
    "time": "time",
    **dict.fromkeys(("array", "error", "input", "job-name", "open-mode", "output", "parsable", "quiet"), ""),
    **dict.fromkeys(("help", "test-only", "usage", "verbose", "version", "wait", "wrap"), ""),
}


class Address(NamedTuple):
    """A host, the user there if one was named, and the port, 0 if none was named."""

    user: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """What all clusters on other hosts have in common.

    Attributes:
        nodes: how many hosts take part.
        workers: worker processes per node; 0 means one per usable core of that host.
        python: the interpreter on the hosts; "" means the one that `interpreter` tells.
        imports: modules that the nodes import, so that the environments of these modules are registered there.
        bind: the address at which the head listens, "host" or "host:port"; "" leaves the choice to the head: loopback
            for `tcp`, the address that routes to the hosts otherwise.
        worker_memory: at how much memory of its own a worker is replaced by a fresh one; "" for no limit.
        wait_s: how long the head waits for the nodes, in seconds; None waits for ever.
        silence_s: after how many seconds of silence a node counts as lost, and a node gives up its head.
        insecure: no encryption, and nobody proves who he is: for a network on which you trust everybody. Never part of
            the text, so that no file and no variable can turn it on.
    """

    kind: ClassVar[str] = ""

    nodes: int = 1
    workers: int = 0
    python: str = ""
    imports: tuple[str, ...] = ()
    bind: str = ""
    worker_memory: str = ""
    wait_s: float | None = 60.0
    silence_s: float = 10.0
    insecure: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.type == "tuple[str, ...]":
                object.__setattr__(self, each.name, _texts(self, each.name))
            elif each.type == "str":
                _check_text(self, each.name)
        self._check()
        _check_whole(self, "nodes", 1, MAX_NODES)
        _check_whole(self, "workers", 0, MAX_WORKERS_PER_NODE)
        _check_python(self)
        _check_imports(self)
        _check_seconds(self)
        if self.worker_memory:
            parse_bytes(f"{self.kind}: worker_memory", self.worker_memory)
        if not isinstance(self.insecure, bool):
            raise ConfigTypeError(f"{self.kind}: insecure={self.insecure!r} must be True or False.")
        if self.bind:
            split_address(self.bind, what=f"{self.kind}: bind")

    def _check(self) -> None:
        """Check what only this kind has."""

    @property
    def interpreter(self) -> str:
        """The Python that is started on the hosts: `python`, or this one, or "python3" where hosts share no disk."""
        return self.python or sys.executable

    @property
    def text(self) -> str:
        """The short text that means the same."""
        options = _options(self)
        return f"{self.kind}:{','.join(options)}" if options else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Tcp(Remote):
    """Node processes on this host, reached by TCP on loopback: for trying things, and for tests."""

    kind: ClassVar[str] = "tcp"

    nodes: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh(Remote):
    """Hosts reached by SSH, one node each. Host keys are always checked.

    Attributes:
        hosts: "host", "user@host" or "user@host:port"; IPv6 addresses in brackets.
        known_hosts: a file of host keys in place of ~/.ssh/known_hosts.
        config: a file in place of ~/.ssh/config.
        identity: a file with the private key in place of the usual ones and the agent.
    """

    kind: ClassVar[str] = "ssh"

    hosts: tuple[str, ...]
    known_hosts: str = ""
    config: str = ""
    identity: str = ""
    nodes: int = field(init=False, default=0)

    def _check(self) -> None:
        if not self.hosts:
            raise ConfigError("ssh: no host is named. Name at least one, as in 'ssh://node1,user@node2:2222'.")
        seen: set[tuple[str, int]] = set()
        for host in self.hosts:
            address = split_address(host, what="ssh: host", user=True)
            place = (address.host.lower(), address.port or 22)
            if place in seen:
                raise ConfigError(
                    f"ssh: host {host[:80]!r} is named twice, and a host runs one node. "
                    "Name it once; for more processes there set workers=."
                )
            seen.add(place)
        object.__setattr__(self, "nodes", len(self.hosts))

    @property
    def interpreter(self) -> str:
        """The Python that is started on the hosts; "python3" unless another was named."""
        return self.python or "python3"

    @property
    def text(self) -> str:
        """The short text that means the same."""
        options = _options(self)
        return f"ssh://{','.join(self.hosts)}" + (f"?{'&'.join(options)}" if options else "")


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
                raise _refused(self, name, value, "letters, digits and . _ @ + -, as in 'cpu' or 'cpu,long'")
        if self.time and not _TIME.fullmatch(self.time):
            raise _refused(self, "time", self.time, "minutes, h:mm:ss, d-hh:mm:ss or UNLIMITED, as in '2:00:00'")
        if self.time and not re.search(r"[1-9UI]", self.time):
            raise ConfigError(f"slurm: time={self.time!r} means no limit to Slurm. Write 'UNLIMITED' if you mean that.")
        _check_whole(self, "cpus", 0, MAX_WORKERS_PER_NODE)
        for option in self.extra:
            _check_sbatch(option)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray(Remote):
    """Hosts of a Ray cluster, each with an actor that runs the node.

    Attributes:
        cpus: CPUs that Ray sets aside for each node. 0 means as many as `workers`, and 1 if that is 0 too.
        address: of the Ray head, "host:port"; "auto" for the Ray that runs on this host; "local" for a new one on this
            host. "" means the one in RAY_ADDRESS, or else the one that runs here, or else a new one.
        namespace: the Ray namespace in which the actors have their names.
    """

    kind: ClassVar[str] = "ray"

    cpus: int = 0
    address: str = ""
    namespace: str = "clusterenv"
    wait_s: float | None = 120.0

    def _check(self) -> None:
        _check_whole(self, "cpus", 0, MAX_WORKERS_PER_NODE)
        if not _NAME.fullmatch(self.namespace):
            raise _refused(self, "namespace", self.namespace, "1 to 128 letters, digits and . _ @ + -")
        if self.address in ("", "auto", "local"):
            return
        if self.address.startswith("ray://"):
            raise _refused(
                self, "address", self.address, "'host:port': nodes have to reach this host, so run on one of Ray's own"
            )
        if not split_address(self.address, what="ray: address").port:
            raise _refused(self, "address", self.address, "'host:port' with a port, as in 'head:6379'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Remote):
    """Machines on which somebody starts the node by hand; the head tells the command and waits.

    Attributes:
        token_file: where the head puts the token that these machines need; "" for a fresh file in ~/.clusterenv. Only
            its owner can read it, and it is removed at the end.
        key_file: where the head keeps the keys of the run, for another head that shall go on after this one was killed.
            Needs a port in `bind`: the nodes that wait look for it there. "" for a run that ends with its head.
    """

    kind: ClassVar[str] = "join"

    token_file: str = ""
    key_file: str = ""

    def _check(self) -> None:
        if self.key_file and not (self.bind and split_address(self.bind, what="join: bind").port):
            raise ConfigError(f"join: key_file={self.key_file[:80]!r} needs a port, as in bind='0.0.0.0:5555'.")

    @property
    def interpreter(self) -> str:
        """The Python of the command that is shown; "python3" unless another was named."""
        return self.python or "python3"


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
        _check_whole(self, "cpus", 0, MAX_WORKERS_PER_NODE)

    def _check_each(self, name: str, form: re.Pattern[str], must_be: str) -> None:
        given = getattr(self, name)
        for value in given if isinstance(given, tuple) else [given] if given else []:
            if not form.fullmatch(value):
                raise _refused(self, name, value, must_be)

    @property
    def interpreter(self) -> str:
        """The Python of the image; "python3" unless another was named."""
        return self.python or "python3"


KINDS: dict[str, type[Remote]] = {kind.kind: kind for kind in (Join, Kubernetes, Ray, Slurm, Ssh, Tcp)}


def split_address(text: str, *, what: str = "address", user: bool = False) -> Address:
    """Take "host", "host:port" or, where `user` allows it, "user@host:port" apart; brackets hold an IPv6 address.

    Example:
        >>> split_address("[::1]:22")
        Address(user='', host='::1', port=22)
    """
    name, at, rest = text.rpartition("@") if user else ("", "", text)
    if at and not _USER.fullmatch(name):
        raise ConfigError(
            f"{what} {text[:80]!r}: {name[:80]!r} must be a user: letters, digits and . _ -, as in 'me@a'."
        )
    found = re.fullmatch(r"(\[(?P<six>[^\]]*)\]|(?P<host>[^:\[\]]*))(:(?P<port>[^:]*))?", rest)
    if not found:
        raise ConfigError(
            f"{what} {text[:80]!r} must be 'host' or 'host:port'. Put an IPv6 address in brackets, as in '[::1]:22'."
        )
    port = found["port"]
    if port is not None and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise ConfigError(f"{what} {text[:80]!r}: the port {port[:80]!r} must be a number between 1 and 65535.")
    host = found["host"] if found["six"] is None else found["six"]
    if not (_HOST.fullmatch(host) if found["six"] is None else _is_ipv6(host)):
        raise ConfigError(
            f"{what} {text[:80]!r} must be the name or the address of a host: 1 to 253 letters, digits and . _ -, "
            "with a letter or a digit at both ends; or an IPv6 address in brackets."
        )
    return Address(name, host, int(port or 0))


def _is_ipv6(host: str) -> bool:
    address, _, zone = host.partition("%")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return "%" not in host or bool(_USER.fullmatch(zone))


def _options(cluster: Remote) -> list[str]:
    """What differs from the defaults, as key=value."""
    found = []
    for each in fields_of_text(type(cluster)):
        value = getattr(cluster, each.name)
        if value == each.default and type(value) is type(each.default):
            continue
        for one in value if isinstance(value, tuple) else [value]:
            shown = "none" if one is None else f"{one:.9f}".rstrip("0").rstrip(".") if type(one) is float else str(one)
            found.append(f"{each.name}={quote(shown, safe='/:.-_=@~+')}")
    return found


def fields_of_text(kind: type[Remote]) -> list[Field[Any]]:
    """The fields that a key of a text can set: those with a default, but for the one that must be typed each time."""
    return [each for each in fields(kind) if each.init and each.default is not MISSING and each.name != "insecure"]


# Checks. Each raises ConfigError with the value, what it must be, and an example.


def _refused(cluster: Remote, name: str, value: object, must_be: str) -> ConfigError:
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:80] + "..."
    return ConfigError(f"{cluster.kind}: {name}={shown} must be {must_be}.")


def _check_whole(cluster: Remote, name: str, least: int, most: int) -> None:
    value = getattr(cluster, name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigTypeError(f"{cluster.kind}: {name}={value!r} must be a whole number between {least} and {most}.")
    if not least <= value <= most:
        raise ConfigError(f"{cluster.kind}: {name}={str(value)[:20]} must be between {least} and {most}.")


def _check_text(cluster: Remote, name: str) -> None:
    value = getattr(cluster, name)
    if not isinstance(value, str):
        raise ConfigTypeError(f"{cluster.kind}: {name}={value!r} must be a text.")
    if not value.isprintable() or value.startswith("-") or len(value) > 1024:
        raise _refused(cluster, name, value, "at most 1024 printable characters, and may not start with '-'")


def _texts(cluster: Remote, name: str) -> tuple[str, ...]:
    value = getattr(cluster, name)
    if not isinstance(value, (tuple, list)) or not all(isinstance(each, str) for each in value):
        raise ConfigTypeError(f"{cluster.kind}: {name}={value!r} must be a tuple of texts, as in {name}=('a', 'b').")
    return tuple(value)


def _check_python(cluster: Remote) -> None:
    if cluster.python.startswith("~"):
        raise _refused(cluster, "python", cluster.python, "a full path or a name: nothing on the hosts expands '~'")


def _check_imports(cluster: Remote) -> None:
    for name in cluster.imports:
        if not _MODULE.fullmatch(name) or len(name) > 255:
            raise _refused(cluster, "imports", name, "the name of a module, as in 'my_package.my_envs'")


def _check_seconds(cluster: Remote) -> None:
    for name, least, never in (("wait_s", 0.001, ", or None to wait for ever"), ("silence_s", 0.1, "")):
        value = getattr(cluster, name)
        if value is None and never:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigTypeError(f"{cluster.kind}: {name}={value!r} must be seconds{never}.")
        if not least <= value < 1e9:  # NaN is refused as well
            raise _refused(cluster, name, value, f"between {least} and 1e9 seconds{never}")
        object.__setattr__(cluster, name, round(float(value), 9))


def _check_sbatch(option: str) -> None:
    found = _SBATCH.fullmatch(option)
    if not found:
        raise ConfigError(
            f"slurm: extra={option[:80]!r} must be a long option of sbatch without blanks, quotes, hashes and "
            "backslashes, as in '--mem=8G'."
        )
    # sbatch takes the beginning of an option for the option.
    taken = next((name for name in _TAKEN if name.startswith(found[1])), None)
    if taken and _TAKEN[taken]:
        raise ConfigError(f"slurm: extra={option[:80]!r} has a field of its own. Use {_TAKEN[taken]}= in its place.")
    if taken:
        raise ConfigError(f"slurm: extra={option[:80]!r} is not for you to set: ClusterEnv needs it. Leave it out.")
