"""The text of a cluster means the object, and a bad one is refused with a message that names what is wrong."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.clusters import KINDS, Join, Kubernetes, Ray, Remote, Slurm, Ssh, Tcp, parse_remote
from clusterenv.errors import ConfigError, ConfigTypeError

GOOD_TEXTS = {
    "tcp": Tcp(nodes=2),
    "tcp:nodes=3,workers=1": Tcp(nodes=3, workers=1),
    "join:nodes=2,bind=0.0.0.0:5555": Join(nodes=2, bind="0.0.0.0:5555"),
    "ssh://a,user@b:2222?workers=4&python=/opt/py": Ssh(hosts=("a", "user@b:2222"), workers=4, python="/opt/py"),
    "ssh://[::1]:22": Ssh(hosts=("[::1]:22",)),
    "ssh://u@[fe80::1%eth0]": Ssh(hosts=("u@[fe80::1%eth0]",)),
    "ssh://a?python=/opt/my%20py&identity=~/.ssh/k%26y": Ssh(hosts=("a",), python="/opt/my py", identity="~/.ssh/k&y"),
    "slurm:nodes=4,partition=cpu,time=2:00:00": Slurm(nodes=4, partition="cpu", time="2:00:00"),
    "slurm:imports=my_envs,imports=more.envs": Slurm(imports=("my_envs", "more.envs")),
    "slurm:wait_s=none,extra=--constraint=a%2Cb,extra=--mem=8G": Slurm(
        extra=("--constraint=a,b", "--mem=8G"), wait_s=None
    ),
    "slurm:extra=--signal=B:USR2@90": Slurm(extra=("--signal=B:USR2@90",)),
    "slurm:wait_s=0.5": Slurm(wait_s=0.5),
    "join:silence_s=2.5": Join(silence_s=2.5),
    "join:bind=0.0.0.0:5555,key_file=run.keys": Join(bind="0.0.0.0:5555", key_file="run.keys"),
    "ray": Ray(),
    "ray:nodes=4,workers=2,cpus=3": Ray(nodes=4, workers=2, cpus=3),
    "ray:address=head.example:6379,namespace=mine": Ray(address="head.example:6379", namespace="mine"),
    "ray:address=auto": Ray(address="auto"),
    "ray:address=local": Ray(address="local"),
    "ray:address=%5B::1%5D:6379": Ray(address="[::1]:6379"),
    "k8s": Kubernetes(),
    "k8s:nodes=8": Kubernetes(nodes=8),
    "k8s:image=localhost:5000/me/envs:1.2,namespace=my-team,cpus=4,memory=4.5Gi,shm=512Mi": Kubernetes(
        image="localhost:5000/me/envs:1.2", namespace="my-team", cpus=4, memory="4.5Gi", shm="512Mi"
    ),
    "k8s:selector=pool=cpu,selector=example.com/zone=,tolerate=spot,tolerate=a=b": Kubernetes(
        selector=("pool=cpu", "example.com/zone="), tolerate=("spot", "a=b")
    ),
    "k8s:context=arn:aws:eks:x/y,kubeconfig=~/my%20config,priority=high.p,pull_secret=s": Kubernetes(
        context="arn:aws:eks:x/y", kubeconfig="~/my config", priority="high.p", pull_secret="s"
    ),
}


@pytest.mark.parametrize(("text", "cluster"), GOOD_TEXTS.items(), ids=GOOD_TEXTS.keys())
def test_a_text_means_the_cluster_and_the_cluster_tells_the_text(text: str, cluster: Remote) -> None:
    assert parse_remote(text) == cluster
    assert cluster.text == text
    assert pickle.loads(pickle.dumps(cluster)) == cluster


def test_every_kind_is_found_by_its_name() -> None:
    assert all(KINDS[name].kind == name for name in KINDS)
    assert set(KINDS) >= {"tcp", "ssh", "slurm", "join"}


BAD_TEXTS = {
    "empty": ("", "unknown kind ''"),
    "unknown scheme": ("slrum:nodes=4", "Did you mean 'slurm'?"),
    "ssh without a host": ("ssh://", "no host is named"),
    "ssh without a host but with options": ("ssh://?workers=2", "no host is named"),
    "ssh without slashes": ("ssh:a", "must name its hosts as in 'ssh://"),
    "ssh alone": ("ssh", "must name its hosts as in 'ssh://"),
    "an empty host": ("ssh://a,,b", "host '' must be"),
    "a comma at the end": ("ssh://a,", "host '' must be"),
    "no nodes": ("slurm:nodes=0", "slurm: nodes=0 must be between 1 and 4096"),
    "too many nodes": ("slurm:nodes=99999", "nodes=99999 must be between"),
    "negative nodes": ("slurm:nodes=-1", "nodes='-1' must be a whole number"),
    "other digits": ("slurm:nodes=%D9%A4", "must be a whole number"),
    "a thousand digits": ("slurm:nodes=" + "9" * 1000, "must be a whole number"),
    "too many workers": ("tcp:workers=1025", "workers=1025 must be between 0 and 1024"),
    "duplicate hosts": ("ssh://a,b,a", "'a' is named twice"),
    "duplicate hosts in other letters": ("ssh://a,A", "'A' is named twice"),
    "duplicate hosts by the usual port": ("ssh://a,a:22", "'a:22' is named twice"),
    "duplicate hosts with another user": ("ssh://a,me@a", "'me@a' is named twice"),
    "a space": ("ssh://a b", "the character ' '"),
    "a newline": ("ssh://a\n", "the character '\\n'"),
    "a NUL": ("ssh://a\0", "the character '\\x00'"),
    "a semicolon": ("ssh://a;rm", "host 'a;rm' must be"),
    "a shell": ("ssh://$(id)", "host '$(id)' must be"),
    "unicode": ("ssh://h\u00f6st", "the character '\u00f6'"),
    "a letter that looks like another": ("ssh://\u0430", "the character"),
    "300 characters": ("ssh://" + "x" * 300, "1 to 253 letters"),
    "10,000 characters": ("ssh://" + "x," * 5000, "10006 characters"),
    "IPv6 without brackets": ("ssh://::1", "in brackets, as in '[::1]:22'"),
    "IPv6 without brackets and a port": ("ssh://fe80::1:22", "in brackets"),
    "brackets around something else": ("ssh://[a]", "host '[a]' must be"),
    "open brackets": ("ssh://[::1", "host '[::1'"),
    "an odd zone": ("ssh://[fe80::1%e;th]", "must be the name or the address"),
    "an option as a host": ("ssh://-oProxyCommand=x", "host '-oProxyCommand=x' must be"),
    "an option as a user": ("ssh://-l@a", "'-l' must be a user"),
    "an empty user": ("ssh://@a", "'' must be a user"),
    "two users": ("ssh://a@b@c", "'a@b' must be a user"),
    "no port": ("ssh://a:", "the port '' must be"),
    "port 0": ("ssh://a:0", "the port '0' must be"),
    "port 65536": ("ssh://a:65536", "the port '65536' must be"),
    "a port that is no number": ("ssh://a:ssh", "the port 'ssh' must be"),
    "a password": ("ssh://me:secret@a", "'me:secret' must be a user"),
    "unknown key": ("slurm:prtition=cpu", "unknown key 'prtition'. Did you mean 'partition'?"),
    "unknown key of ssh": ("ssh://a?worker=2", "Did you mean 'workers'?"),
    "nodes of ssh": ("ssh://a?nodes=2", "unknown key 'nodes'"),
    "hosts of ssh": ("ssh://a?hosts=b", "unknown key 'hosts'"),
    "unknown key of k8s": ("k8s:imgae=a", "unknown key 'imgae'. Did you mean 'image'?"),
    "no nodes of k8s": ("k8s:nodes=0", "k8s: nodes=0 must be between 1 and 4096"),
    "duplicate key": ("tcp:nodes=2,nodes=3", "nodes= is given twice"),
    "no key": ("tcp:4", "'4' must be key=value"),
    "no value": ("tcp:nodes=", "nodes='' must be a whole number"),
    "no text": ("slurm:partition=", "partition= has no value"),
    "an empty option": ("tcp:nodes=2,", "'' must be key=value"),
    "nothing after the colon": ("tcp:", "nothing follows the colon"),
    "nothing after the question mark": ("ssh://a?", "nothing follows the question mark"),
    "a lone percent sign": ("slurm:folder=/a%zz", "not %XX"),
    "not UTF-8": ("slurm:folder=/a%ff", "must be UTF-8"),
    "silence for ever": ("tcp:silence_s=none", "must be seconds"),
    "hardly any silence": ("tcp:silence_s=0.01", "between 0.1 and 1e9 seconds"),
    "seconds in words": ("tcp:wait_s=60s", "must be seconds"),
    "seconds in another form": ("tcp:wait_s=1e3", "must be seconds"),
    "no seconds": ("tcp:wait_s=0", "between 0.001 and 1e9"),
    "no time": ("slurm:time=0", "means no limit to Slurm"),
    "no time in another form": ("slurm:time=0-00:00:00", "means no limit to Slurm"),
    "a time in words": ("slurm:time=2h", "must be minutes, h:mm:ss"),
    "a newline in a name": ("slurm:partition=cpu%0A#SBATCH%20--uid=0", "printable"),
    "an option as a name": ("slurm:account=--uid=0", "may not start with '-'"),
    "a shell in a name": ("slurm:qos=$(id)", "qos='$(id)' must be letters"),
    "quotes in a name": ("slurm:partition=%22cpu%22", "must be letters"),
    "a space in a name": ("slurm:partition=a%20b", "must be letters"),
    "a module that is none": ("tcp:imports=os;system", "must be the name of a module"),
    "a path as a module": ("tcp:imports=../evil", "must be the name of a module"),
    "an option as a module": ("tcp:imports=--head", "must be the name of a module"),
    "a tilde": ("ssh://a?python=~/bin/python", "nothing on the hosts expands '~'"),
    "an option as python": ("ssh://a?python=-c", "may not start with '-'"),
    "Ray by its client": ("ray:address=ray://head:10001", "run on one of Ray's own"),
    "Ray without a port": ("ray:address=head", "with a port, as in 'head:6379'"),
    "Ray in a host that is none": ("ray:address=$(id):1", "must be the name or the address of a host"),
    "a namespace that is none": ("ray:namespace=a%20b", "1 to 128 letters"),
    "an option as a namespace": ("ray:namespace=-a", "may not start with '-'"),
    "too many CPUs": ("ray:cpus=100000", "cpus=100000 must be between 0 and 1024"),
    "an odd bind": ("join:bind=::", "in brackets"),
    "a bind with a user": ("join:bind=me@a", "bind 'me@a' must be"),
}


@pytest.mark.parametrize(("text", "says"), BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
def test_a_bad_text_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_remote(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300, "the message quotes a long text in part only"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [None, 4, ["ssh://a"], b"tcp"])
def test_a_text_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(ConfigTypeError, match="cluster="):
        parse_remote(value)


@given(
    st.text(max_size=40),
    st.sampled_from(["", "tcp:", "ssh://", "slurm:", "join:", "ray:", "slurm:partition=", "tcp:nodes=", "k8s:image="]),
)
def test_any_text_is_a_cluster_or_a_config_error(text: str, start: str) -> None:
    with contextlib.suppress(ConfigError):
        cluster = parse_remote(start + text)
        assert parse_remote(cluster.text) == cluster


@given(
    st.builds(
        Slurm,
        nodes=st.integers(1, 4096),
        workers=st.integers(0, 1024),
        silence_s=st.floats(0.1, 1e8) | st.integers(1, 1000),
        wait_s=st.none() | st.floats(0.001, 1e8) | st.integers(1, 1000),
        partition=st.from_regex(r"\A[a-z0-9][a-z,]{0,9}[a-z]\Z").filter(lambda name: ",," not in name),
        folder=st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=20).filter(lambda t: t[:1] != "-"),
        python=st.text(st.characters(categories=["L", "N", "P"]), max_size=20).filter(lambda t: t[:1] not in "-~"),
        extra=st.lists(st.sampled_from(["--mem=8G", "--constraint=a&b,c", "--hold"]), max_size=3),
        imports=st.lists(st.from_regex(r"\A[a-z_]{1,5}(\.[a-z_]{1,5}){0,2}\Z"), max_size=3),
    )
)
def test_the_text_of_any_cluster_means_the_cluster(cluster: Slurm) -> None:
    assert parse_remote(cluster.text) == cluster
    assert cluster.text.isascii()
    assert cluster.text.isprintable()
