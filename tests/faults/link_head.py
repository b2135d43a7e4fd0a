"""A head for tests on links between hosts: plays a stream with a policy, and tells of every batch on its output.

python -m tests.faults.link_head ADDRESS TOKEN_FILE WIDTH [ON_LOSS SILENCE_S]
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

import clusterenv


class Agent(nn.Module):
    """Two layers of a width; the weights are noise, so that they cannot be made smaller on their way."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Linear(width, 2))

    def get_action_and_value(self, x: Any) -> Any:
        """As in CleanRL."""
        chosen: Any = torch.distributions.Categorical(logits=self.actor(x))
        action = chosen.sample()
        return action, chosen.log_prob(action), chosen.entropy(), x[:, :1]


def main(address: str, token: str, width: int, on_loss: str = "restart", silence_s: str = "10") -> None:
    """Play until the end of standard input."""
    torch.manual_seed(1)
    agent = Agent(width)
    cluster = clusterenv.Join(nodes=1, workers=1, bind=address, token_file=token, silence_s=float(silence_s))
    with clusterenv.make_vec("CartPole-v1", num_envs=2, cluster=cluster, on_loss=on_loss) as envs:
        envs.reset(seed=1)
        envs.attach(agent, sync="on-change", encoding="fp32", seed=1)
        with envs.stream(steps=8, slots=2) as batches:
            for batch in batches:
                told = batch.steps, int(batch.version.max()), envs.stats()["restarts"]
                sys.stdout.write(" ".join(map(str, told)) + "\n")
                sys.stdout.flush()
                agent.actor[0].weight.data.add_(0.01)  # type: ignore[operator]
                envs.publish(agent)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
