"""What a lost host leaves behind, and what it finds when it comes back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import clusterenv
from clusterenv.cluster.slots import share
from clusterenv.wire import messages as m
from tests.conformance.kit import kill_node
from tests.policy.agents import CleanRL, Recurrent

if TYPE_CHECKING:
    from clusterenv import ClusterEnv

TWO_BY_TWO = "tcp:nodes=2,workers=2"


def pole(cluster: str, mode: str = "NextStep") -> ClusterEnv:
    envs = clusterenv.make_vec("CartPole-v1", num_envs=8, cluster=cluster, vector_kwargs={"autoreset_mode": mode})
    envs.reset(seed=3)
    return envs


def test_its_workers_come_back_together_in_the_same_step() -> None:
    with pole(TWO_BY_TWO, "SameStep") as envs:
        kill_node(envs, 0)
        _, _, _, truncated, infos = envs.step(np.zeros(8, np.int64))
        assert truncated.tolist() == [True] * 4 + [False] * 4
        assert infos["_final_obs"].tolist() == truncated.tolist()
        assert not envs.step(np.zeros(8, np.int64))[3].any()


def test_it_gets_the_policy_and_its_weights_again() -> None:
    torch.manual_seed(0)
    policy = CleanRL(4, 2)
    with pole(TWO_BY_TWO) as envs:
        envs.attach(policy, seed=1, sync="never")
        envs.rollout(5)
        kill_node(envs, 2)
        batch = envs.rollout(5)
        assert batch.worker_lost.any()
        assert np.isfinite(batch.logp).all()
        assert envs.stats()["syncs"] == 3  # two hosts, and one of them again


def test_versions_before_the_policy_is_there_are_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    policy = CleanRL(4, 2)
    with caplog.at_level(logging.WARNING), pole("tcp:nodes=2,workers=1") as envs:
        envs.attach(policy, seed=1, sync="on-change", encoding="bf16-delta")
        for _ in range(3):
            with torch.no_grad():
                for tensor in policy.parameters():
                    tensor.add_(0.1)
            newest = envs.publish(policy)
        envs.rollout(2)
        assert (envs.rollout(2).version == newest.number).all()
    assert "could not use its weights" not in caplog.text


@pytest.mark.parametrize(
    ("num_envs", "wanted", "shares"),
    [
        (8, [2, 2], [2, 2]),
        (2, [2, 2], [1, 1]),
        (3, [16, 2], [3, 0]),
        (1, [1, 1, 1], [1, 0, 0]),
        (5, [3, 3, 3], [2, 2, 1]),
    ],
)
def test_hosts_share_slots_that_are_too_few(num_envs: int, wanted: list[int], shares: list[int]) -> None:
    assert share(num_envs, wanted) == shares


def test_a_fragment_that_fits_no_frame_is_refused_with_numbers() -> None:
    torch.manual_seed(0)
    with pole("tcp:nodes=1,workers=1") as envs:
        envs.attach(CleanRL(4, 2), seed=1)
        with pytest.raises(clusterenv.ConfigError, match=r"GiB of observations, more than the 1 GiB"):
            envs.rollout(10_000_000)
        assert envs.rollout(3).T == 3
        envs.attach(Recurrent(2), seed=1, every_state=True)
        with pytest.raises(clusterenv.ConfigError, match=r"GiB of states, more than the 1 GiB"):
            envs.rollout(5_000_000)
        assert envs.rollout(3).T == 3


def test_a_policy_that_was_never_played_leaves_nothing_behind() -> None:
    torch.manual_seed(0)
    with pole("tcp:nodes=2,workers=1") as envs:
        envs.attach(CleanRL(4, 2), seed=1, sync="on-change")
        envs.attach(CleanRL(4, 2), seed=1, sync="on-change")
        assert np.isfinite(envs.rollout(3).logp).all()
        envs.attach(CleanRL(4, 2), seed=1, sync="never")
        with envs.stream(steps=3) as batches:
            assert np.isfinite(next(batches).logp).all()


@pytest.mark.parametrize("version", [(2, 99), (3, 0)], ids=["of an earlier head", "of before"])
def test_weights_that_are_late_are_refused(version: tuple[int, int]) -> None:
    torch.manual_seed(0)
    policy = CleanRL(4, 2)
    with pole("tcp:nodes=1,workers=1") as envs:
        envs.attach(policy, seed=1, sync="on-change", epoch=3)
        with torch.no_grad():
            next(iter(policy.parameters())).add_(0.1)
        assert envs.publish(policy) == (3, 1)
        assert envs.rollout(3).epoch == 3
        node: Any = envs._engine.node
        answers: list[m.Answer] = []
        memory: Any = envs._detached and envs._detached._memory
        node._crew.hosts[0].ask(
            m.Weights,
            lambda answer, frames: answers.append(answer),
            [b"late"],
            memory=memory.number,
            offset=0,
            size=4,
            kind="fp32",
            base=None,
            version=version,
            digest=b"",
        )
        assert node._wait_while(lambda: not answers, 30.0)
        assert "versions never go back" in answers[0].error
        assert (envs.rollout(3).version == 1).all()
