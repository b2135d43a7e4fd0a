"""Transitions that prove where they come from: an environment that tells its life, a policy that tells its version."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from clusterenv.extras import load
from clusterenv.policy.distributions import Categorical

if TYPE_CHECKING:
    from collections.abc import Sequence

CHOICES = 64
NO_ACTION = -1
_BITS = 24  # a value is a float32, which has whole numbers up to this many bits
_POWERS = 2.0 ** np.arange(_BITS, dtype=np.float32)
_BUILD_BITS = 40
_FAR = 1e6  # a logit that leaves nothing to the others


class Place(NamedTuple):
    """Where a transition comes from: what an `EchoEnv` observes.

    Attributes:
        slot: as the environment was told.
        build: a random number of each environment that is built.
        episode: counted from 1 in each of these.
        step: counted from 0, the reset, in each episode.
        action: what the last step was asked to do; -1 after a reset.
        last: 1 if the episode ended here.
    """

    slot: int
    build: int
    episode: int
    step: int
    action: int
    last: int


class EchoEnv(gymnasium.Env[Any, Any]):
    """Observes its `Place`; the reward is the action.

    Workers make it by id: `clusterenv.testing:Echo-v0`, with one dictionary per slot in `slot_kwargs`, as
    `echo_slots` makes them.

    Args:
        slot: told back in every observation.
        length: the shortest episode; they end after one to five steps more, by slot and episode.

    Example:
        >>> env = EchoEnv(slot=3)
        >>> observation, _ = env.reset()
        >>> place = Place(*env.step(7)[0].tolist())
        >>> place.slot, place.episode, place.step, place.action
        (3, 1, 1, 7)
    """

    def __init__(self, slot: int = 0, length: int = 10) -> None:
        self.observation_space = spaces.Box(NO_ACTION, 2**_BUILD_BITS, (len(Place._fields),), np.int64)
        self.action_space = spaces.Discrete(CHOICES)
        self._slot, self._length = slot, length
        self._build = secrets.randbits(_BUILD_BITS)
        self._episode = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The next episode."""
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return self._observe(NO_ACTION, 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count."""
        self._step += 1
        last = self._step > self._length + (self._slot + self._episode) % 5
        return self._observe(int(action), int(last)), float(action), last, False, {}

    def _observe(self, action: int, last: int) -> Any:
        return np.array(Place(self._slot, self._build, self._episode, self._step, action, last), np.int64)


def echo_slots(num_envs: int, **kwargs: Any) -> list[dict[str, Any]]:
    """The `slot_kwargs` of a batch of EchoEnv.

    Example:
        >>> echo_slots(2, length=5)
        [{'slot': 0, 'length': 5}, {'slot': 1, 'length': 5}]
    """
    return [{"slot": slot, **kwargs} for slot in range(num_envs)]


class EchoPolicy:
    """A NumPy policy whose weights are its version: its value is the number, its action the number modulo 64.

    The weights are zeros and ones, so every encoding keeps them as they are, and half an update shows. It travels to
    the workers of this host; `echo_module` is the same for other hosts.

    Example:
        >>> policy = EchoPolicy()
        >>> policy.number = 70
        >>> params, value, _ = policy.forward(policy.weights(), np.zeros((1, 6)), ())
        >>> int(params.argmax()), float(value[0])
        (6, 70.0)
    """

    distribution = Categorical(CHOICES)

    def __init__(self) -> None:
        self.number = 0

    def weights(self) -> dict[str, Any]:
        """The number, as a choice and as bits."""
        choice, bits = _digits(self.number)
        return {"choice": choice, "bits": bits}

    def forward(self, weights: Any, obs: Any, state: Any) -> Any:
        """The same for every observation."""
        params = np.tile((weights["choice"] - 1.0) * np.float32(_FAR), (len(obs), 1))
        return params, np.full(len(obs), weights["bits"] @ _POWERS, np.float32), state


def echo_module() -> Any:
    """An `EchoPolicy` as a torch module, which travels to other hosts as a graph. `number` is set in the same way."""
    torch = load("torch", extra="train", purpose="a version-echo policy for other hosts")

    class EchoModule(torch.nn.Module):  # type: ignore[misc, name-defined]
        distribution = Categorical(CHOICES)

        def __init__(self) -> None:
            super().__init__()
            self.choice, self.bits = torch.nn.Parameter(torch.zeros(CHOICES)), torch.nn.Parameter(torch.zeros(_BITS))
            self.register_buffer("powers", torch.from_numpy(_POWERS))
            self._set(0)

        def _get(self) -> int:
            return int(self.bits.detach() @ self.powers)

        def _set(self, number: int) -> None:
            choice, bits = _digits(number)
            with torch.no_grad():
                self.choice.copy_(torch.from_numpy(choice))
                self.bits.copy_(torch.from_numpy(bits))

        number = property(_get, _set)

        def forward(self, obs: Any, state: Sequence[Any] = ()) -> Any:
            nothing = obs[..., :1].to(torch.float32) * 0.0  # one row per observation
            return nothing + (self.choice - 1.0) * _FAR, (nothing + self.bits @ self.powers).squeeze(-1), state

    return EchoModule()


def _digits(number: int) -> tuple[Any, Any]:
    choice = np.zeros(CHOICES, np.float32)
    choice[number % CHOICES] = 1.0
    return choice, np.array([number >> bit & 1 for bit in range(_BITS)], np.float32)


gymnasium.register("Echo-v0", f"{__name__}:EchoEnv", disable_env_checker=True, order_enforce=False)
