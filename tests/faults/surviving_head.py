"""A head for tests on heads that are killed: plays with a policy, and tells of every batch on its output.

python -m tests.faults.surviving_head ADDRESS FOLDER

It ends well when its standard input does.
"""

from __future__ import annotations

import pathlib
import select
import sys

import torch

import clusterenv
from tests.policy.agents import CleanRL


def main(address: str, folder: pathlib.Path) -> None:
    """Play until the end of standard input."""
    torch.manual_seed(1)
    policy = CleanRL(4, 2)
    keys, token = str(folder / "keys"), str(folder / "token")
    cluster = clusterenv.Join(nodes=1, bind=address, token_file=token, key_file=keys, silence_s=5.0)
    with clusterenv.make_vec("CartPole-v1", num_envs=2, cluster=cluster) as envs:
        envs.reset(seed=1)
        envs.attach(policy, sync="on-change", seed=1)
        while not select.select([sys.stdin], [], [], 0.0)[0]:
            batch = envs.rollout(8)
            told = batch.epoch, int(batch.version.min()), batch.steps, int(batch.worker_lost.sum())
            sys.stdout.write(" ".join(map(str, told)) + "\n")
            sys.stdout.flush()
            with torch.no_grad():
                next(iter(policy.parameters())).add_(0.01)
            envs.publish(policy)


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
