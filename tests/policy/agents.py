"""Small agents of every accepted kind."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from clusterenv.policy import distributions
from clusterenv.spaces import Leaf

kinds: Any = torch.distributions  # its methods have no type hints

# The leak check looks through all objects before and after each test. Torch's own half a million need no looking at.
gc.collect()
gc.freeze()

BOX = spaces.Box(-1, 1, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 12, 12), np.uint8)
DICT = spaces.Dict(place=spaces.Discrete(5), speed=spaces.Box(-np.inf, np.inf, (3,), np.float64), unused=BOX)


def mlp(inputs: int, outputs: int, width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs))


class CleanRL(nn.Module):
    """The agent of cleanrl/ppo.py."""

    def __init__(self, inputs: int = 4, actions: int = 3, width: int = 16) -> None:
        super().__init__()
        self.critic = mlp(inputs, 1, width)
        self.actor = mlp(inputs, actions, width)
        self.never_used = nn.Linear(2, 2)

    def get_value(self, x: Any) -> Any:
        return self.critic(x)

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        probs = kinds.Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


class Attending(CleanRL):
    """Has a layer that only the newer of torch's exporters knows."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        return super().get_action_and_value(self.attention(x[:, None])[:, 0], action)


class Continuous(nn.Module):
    """The agent of cleanrl/ppo_continuous_action.py, with the distribution of one's choice."""

    def __init__(self, inputs: int = 4, actions: int = 2, kind: str = "normal") -> None:
        super().__init__()
        self.kind = kind
        self.critic = mlp(inputs, 1)
        self.actor_mean = mlp(inputs, actions)
        self.actor_logstd = nn.Parameter(torch.full((1, actions), -0.5))

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        mean = self.actor_mean(x)
        probs: Any = kinds.Normal(mean, torch.exp(self.actor_logstd.expand_as(mean)))
        if self.kind == "independent":
            probs = kinds.Independent(probs, 1)
        if self.kind == "tanh":
            probs = kinds.TransformedDistribution(probs, [kinds.TanhTransform(cache_size=1)])
        if self.kind == "scaled":
            probs = kinds.TransformedDistribution(
                probs, [kinds.TanhTransform(cache_size=1), kinds.AffineTransform(1.0, torch.tensor([2.0, 3.0]))]
            )
        if self.kind == "lognormal":
            probs = kinds.LogNormal(mean, probs.scale)
        if self.kind == "beta":
            probs = kinds.Beta(mean.exp(), mean.exp())
        action = probs.rsample() if action is None else action
        return action, probs.log_prob(action).sum(-1), None, self.critic(x)


class Several(nn.Module):
    """Several choices at once: one Categorical each, as CleanRL does it for MultiDiscrete; or bits."""

    def __init__(self, nvec: tuple[int, ...] = (), bits: int = 0) -> None:
        super().__init__()
        self.nvec, self.bits = nvec, bits
        self.actor = mlp(4, sum(nvec) + bits)

    def get_action_and_value(self, x: Any) -> Any:
        logits = self.actor(x)
        if self.bits:
            return kinds.Bernoulli(logits=logits).sample(), None, None, None
        parts = [kinds.Categorical(logits=part) for part in logits.split(list(self.nvec), 1)]
        return torch.stack([part.sample() for part in parts]), None, None, None


class Atari(nn.Module):
    """The agent of cleanrl/ppo_atari.py, on small images."""

    def __init__(self, actions: int = 3) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(2, 4, 4, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 8)
        )
        self.actor, self.critic = nn.Linear(8, actions), nn.Linear(8, 1)

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        hidden = self.network(x / 255.0)
        probs = kinds.Categorical(logits=self.actor(hidden))
        return probs.sample(), None, probs.entropy(), self.critic(hidden)


class Paper(nn.Module):
    """forward(x) gives the action (as NumPy), its log-probability, the entropy and the value."""

    def __init__(self, inputs: int = 4, actions: int = 3) -> None:
        super().__init__()
        self.actor, self.critic = mlp(inputs, actions), mlp(inputs, 1)

    def forward(self, x: Any) -> Any:
        probs = kinds.Categorical(probs=torch.softmax(self.actor(x), -1))
        action = probs.sample()
        return action.cpu().numpy(), probs.log_prob(action), probs.entropy(), self.critic(x).squeeze(-1)


class Table(nn.Module):
    """Discrete observations: looked up in a table, or by their number."""

    def __init__(self, *, long: bool) -> None:
        super().__init__()
        self.long = long
        self.embedding = nn.Embedding(7, 3)

    def forward(self, x: Any) -> Any:
        logits = self.embedding(x.long() if self.long else x)
        return kinds.Categorical(logits=logits).sample(), None, None, logits.sum(-1)


class Native(nn.Module):
    """Our own kind, on a Dict observation."""

    def __init__(self) -> None:
        super().__init__()
        self.distribution = distributions.Categorical(3)
        self.embedding, self.actor, self.critic = nn.Embedding(5, 4), mlp(7, 3), mlp(7, 1)

    def forward(self, obs: Any, state: Any) -> Any:
        x = torch.cat([self.embedding(obs["place"]), obs["speed"]], -1)
        return self.actor(x), self.critic(x).squeeze(-1), state


class Recurrent(nn.Module):
    """Our own kind, with the state of an LSTM cell, or of torch's LSTM layer."""

    def __init__(self, choices: int = 3, *, layer: bool = False) -> None:
        super().__init__()
        self.distribution = distributions.Categorical(choices)
        self.state = (Leaf((8,), np.dtype(np.float32)), Leaf((8,), np.dtype(np.float32)))
        self.layer = nn.LSTM(4, 8) if layer else None
        self.cell = nn.LSTMCell(4, 8)
        self.actor = nn.Linear(8, choices)

    def forward(self, obs: Any, state: Any) -> Any:
        if self.layer is not None:
            _, (h, c) = self.layer(obs[None], (state[0][None], state[1][None]))
            hidden, cell = h[0], c[0]
        else:
            hidden, cell = self.cell(obs, state)
        return self.actor(hidden), None, (hidden, cell)


class Deciding(CleanRL):
    """Looks at the values to decide what to compute: no graph holds that."""

    def get_action_and_value(self, x: Any, action: Any = None) -> Any:
        return super().get_action_and_value(x * 2 if x.sum() > 0 else x, action)


class NumpyPolicy:
    """A policy without torch."""

    def __init__(self, size: int = 3, *, value: bool = True) -> None:
        self.distribution = distributions.Categorical(size)
        self.matrix = np.ones((4, 3), np.float32)
        self.value = value

    def weights(self) -> dict[str, Any]:
        return {"matrix": self.matrix}

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        return obs @ weights["matrix"], obs.sum(-1, dtype=np.float64) if self.value else None, state


def forget(module: nn.Module) -> None:
    """Give the module other weights, as a training step would."""
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(tensor.numel())) / 2)
