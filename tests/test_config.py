"""What a user can set: every wrong value is refused with a message that names it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterenv.clusters import Remote, Slurm, Tcp
from clusterenv.config import (
    MAX_ENVS,
    MAX_WORKERS,
    Cluster,
    Inproc,
    Local,
    OnLoss,
    Timeouts,
    check_num_envs,
    check_seconds,
    parse_cluster,
    parse_on_loss,
    usable_cores,
)
from clusterenv.errors import ConfigError, ConfigTypeError

LIMITS = [field.name for field in dataclasses.fields(Timeouts)]


# Clusters.


@given(
    st.integers(1, MAX_WORKERS),
    st.sampled_from(["auto", "pin", "off"]),
    st.none() | st.integers(1, 999),
    st.sampled_from(["", "1.5GiB"]),
)
def test_the_text_of_a_cluster_means_the_cluster(
    workers: int, affinity: Any, threads: int | None, worker_memory: str
) -> None:
    for cluster in (Inproc(workers), Local(workers, affinity, threads, worker_memory)):
        assert parse_cluster(cluster.text) == cluster


def test_a_text_says_what_differs_from_the_defaults() -> None:
    assert Local(4).text == "local:4"
    assert Local(4, affinity="off", threads=2).text == "local:4,affinity=off,threads=2"
    assert Local(4, threads=None).text == "local:4,threads=none"


@pytest.mark.parametrize(
    "cluster", [Inproc(), Inproc(3), Local(2), Local(2, affinity="off", threads=None), Tcp(), Slurm(nodes=3)]
)
def test_typed_clusters_are_taken_as_they_are(cluster: Cluster) -> None:
    assert parse_cluster(cluster) is cluster


def test_without_a_number_there_is_a_worker_per_usable_core() -> None:
    assert parse_cluster("local") == Local(usable_cores())
    assert parse_cluster("local,worker_memory=2GiB") == Local(usable_cores(), worker_memory="2GiB")
    assert parse_cluster("inproc") == Inproc(1)


BAD_TEXTS = {
    "memory without a unit": ("local:2,worker_memory=2", "worker_memory='2' must be an amount with its unit"),
    "memory without a value": ("local:2,worker_memory=", "worker_memory= has no value"),
    "nothing behind the comma": ("local:2,", "'' must be key=value"),
    "a key that is unknown": ("local:2,thread=2", "unknown key 'thread'. Did you mean 'threads'?"),
    "the number as a key": ("local,workers=2", "unknown key 'workers'"),
    "a key of other hosts": ("local,insecure=1", "unknown key 'insecure'"),
    "a key twice": ("local,threads=1,threads=2", "threads= is given twice"),
    "threads of no number": ("local,threads=two", "threads='two' must be a whole number"),
    "no threads": ("local,threads=0", "threads=0 must be a whole number of at least 1"),
    "an unknown affinity": ("local,affinity=of", "unknown affinity 'of'. Did you mean 'off'?"),
    "options of no worker": ("inproc,threads=2", "the number of workers must be a whole number"),
    "memory of nothing": ("local:2,worker_memory=0GiB", "worker_memory='0GiB' must be an amount"),
    "memory of no worker": ("inproc:2,worker_memory=2GiB", "the number of workers must be a whole number"),
    "memory of another host": ("tcp:worker_memory=2Gi", "tcp: worker_memory='2Gi' must be an amount with its unit"),
    "empty": ("", "cluster='': unknown kind ''"),
    "unknown scheme": ("slrum:4", "cluster='slrum:4': unknown kind 'slrum'. Did you mean 'slurm'?"),
    "ssh without a host": ("ssh://", "ssh: no host is named"),
    "ssh with an empty host": ("ssh://a,,b", "ssh: host '' must be"),
    "slurm without nodes": ("slurm:nodes=0", "slurm: nodes=0 must be between 1 and"),
    "no workers": ("local:0", "local:0 must have between 1 and 1024"),
    "no blocks": ("inproc:0", "inproc:0 must have between 1 and 1024"),
    "too many workers": ("local:99999", "local:99999 must have between 1 and 1024"),
    "a number of nine digits": ("local:999999999", "local:999999999"),
    "a number of a thousand digits": ("local:" + "9" * 1000, "cluster='local:9999"),
    "colon without a number": ("local:", "cluster='local:'"),
    "negative": ("local:-1", "cluster='local:-1'"),
    "signed": ("local:+1", "'local:+1'"),
    "fraction": ("local:1.5", "'local:1.5'"),
    "hexadecimal": ("local:0x4", "'local:0x4'"),
    "underscore": ("local:1_0", "'local:1_0'"),
    "two numbers": ("local:1:2", "'local:1:2'"),
    "newline": ("local:4\n", "'local:4\\n'"),
    "space": ("local: 4", "'local: 4'"),
    "leading space": (" local:4", "cluster=' local:4': unknown kind ' local'"),
    "semicolon": ("local:4;rm", "'local:4;rm'"),
    "other digits": ("local:\u0664", "'local:\u0664'"),
    "upper case": ("LOCAL:4", "cluster='LOCAL:4': unknown kind 'LOCAL'"),
    "unicode": ("lo\u0441al:4", "unknown kind"),
    "300 characters": ("x" * 300, "unknown kind 'xxx"),
}


@pytest.mark.parametrize(("text", "says"), BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
def test_a_bad_cluster_text_is_refused_by_name(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300, "the message quotes a long text in part only"


@pytest.mark.parametrize(("text", "meant"), [("locl", "local"), ("slrum:nodes=4", "slurm"), ("sssh://a,b", "ssh")])
def test_a_misspelt_cluster_gets_a_suggestion(text: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{meant}'"):
        parse_cluster(text)


def test_texts_of_clusters_on_other_hosts_are_understood_too() -> None:
    assert parse_cluster("tcp:nodes=3") == Tcp(nodes=3)


@pytest.mark.parametrize("value", [None, 4, 4.0, ["local"], b"local", object()])
def test_a_cluster_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(ConfigTypeError, match="cluster="):
        parse_cluster(value)


@given(st.text(max_size=30))
def test_any_text_is_a_cluster_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_cluster(text), (Inproc, Local, Remote))


@pytest.mark.parametrize("kind", [Inproc, Local])
@pytest.mark.parametrize("workers", [-1, MAX_WORKERS + 1, 2.5, "4", None, True, False, 0.0])
def test_a_bad_number_of_workers_is_refused(kind: type[Inproc | Local], workers: Any) -> None:
    with pytest.raises(ConfigError, match=str(workers)):
        kind(workers)


def test_zero_blocks_are_refused_but_zero_workers_mean_one_per_core() -> None:
    with pytest.raises(ConfigError, match="inproc:0"):
        Inproc(0)
    assert Local(0) == Local(usable_cores())


@pytest.mark.parametrize("affinity", ["on", "", None, 1, ["auto"]])
def test_a_bad_affinity_is_refused(affinity: Any) -> None:
    with pytest.raises(ConfigError, match="unknown affinity"):
        Local(2, affinity=affinity)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "1", True])
def test_a_bad_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(ConfigError, match="threads="):
        Local(2, threads=threads)


@pytest.mark.parametrize(
    ("affinity", "workers", "expected"),
    [
        ("auto", 1, [None]),
        ("auto", 2, [4, 7]),
        ("auto", 3, [4, 7, 4]),
        ("pin", 1, [4]),
        ("off", 3, [None, None, None]),
    ],
)
def test_which_core_a_worker_gets(affinity: Any, workers: int, expected: list[int | None]) -> None:
    cluster = Local(workers, affinity=affinity)
    assert [cluster.core_for(worker, [4, 7]) for worker in range(workers)] == expected


# Limits.

BAD_SECONDS = {
    "zero": 0,
    "zero as a float": 0.0,
    "negative": -1.0,
    "NaN": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "larger than any float": 10**400,
    "thirty years": 1e9,
    "text": "60",
    "text with a unit": "60 s",
    "a boolean": True,
    "a list": [1.0],
    "complex": 1j,
}


@pytest.mark.parametrize("value", BAD_SECONDS.values(), ids=BAD_SECONDS.keys())
def test_a_bad_limit_is_refused_by_name(value: Any) -> None:
    for limit in LIMITS:
        with pytest.raises(ConfigError, match=f"timeouts.{limit}="):
            Timeouts(**{limit: value})


@pytest.mark.parametrize("value", [0.001, 1, 3600.0, np.float32(2.5), 999_999_999, None])
def test_good_limits_are_kept(value: Any) -> None:
    for limit in LIMITS:
        kept = getattr(Timeouts(**{limit: value}), limit)
        assert kept == value
        assert type(kept) is (float if value is not None else type(None)), "a file can hold it"


def test_every_limit_is_finite_unless_typed() -> None:
    assert all(getattr(Timeouts(), limit) is not None for limit in LIMITS)


def test_limits_are_named_and_frozen() -> None:
    with pytest.raises(TypeError):
        Timeouts(5.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Timeouts(silence_s=1.0)  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Timeouts().step_s = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("value", ["1", True, None, object()])
def test_the_type_is_named_where_it_is_the_matter(value: Any) -> None:
    if value is None:
        assert check_seconds("timeout", value) is None
        return
    with pytest.raises(ConfigTypeError, match="timeout="):
        check_seconds("timeout", value)


# The rest.


@pytest.mark.parametrize(("value", "count"), [(1, 1), (np.int64(7), 7), (MAX_ENVS, MAX_ENVS)])
def test_good_numbers_of_environments(value: Any, count: int) -> None:
    assert check_num_envs(value) == count
    assert type(check_num_envs(value)) is int


@pytest.mark.parametrize("value", [0, -1, 2.5, True, 10**9, MAX_ENVS + 1, "4", None, np.float64(4)])
def test_bad_numbers_of_environments_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="num_envs="):
        check_num_envs(value)


@pytest.mark.parametrize("value", ["restart", OnLoss.RESTART])
def test_on_loss_is_a_text_or_the_enum(value: Any) -> None:
    assert parse_on_loss(value) is OnLoss.RESTART


@pytest.mark.parametrize("value", ["restrat", "", None, 1, ["restart"]])
def test_a_bad_on_loss_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="unknown on_loss"):
        parse_on_loss(value)
