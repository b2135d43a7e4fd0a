"""From a few words to a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from clusterenv.errors import ConfigError, unknown
from clusterenv.learners.common.networks.actor_critic import ActorCritic
from clusterenv.learners.common.networks.bodies import ImageBody, VectorBody
from clusterenv.learners.common.networks.shared import SharedActorCritic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

    from clusterenv.learners.common.networks.base import Network

Body = Literal["mlp", "shallow", "deep", "nature"]

# The layers of each body when none are asked for; those of images as they were published.
_HIDDEN: dict[str, tuple[int, ...]] = {"mlp": (64, 64), "shallow": (256,), "deep": (256,), "nature": (512,)}


def make_network(
    observation_space: Space[Any],
    action_space: Space[Any],
    *,
    body: Body = "mlp",
    hidden: Sequence[int] | None = None,
    lstm: int = 0,
    normalize: bool = False,
    shared: bool | None = None,
    values: int = 1,
    first_spread: float = 1.0,
) -> Network:
    """A network for these spaces.

    Args:
        observation_space: of one environment.
        action_space: of one environment: Discrete, MultiDiscrete, MultiBinary or Box.
        body: "mlp" makes a row of numbers of any observation. "shallow" and "deep" are the two networks of IMPALA for
            images, "nature" that of DQN; what is no image, such as the last action, is put beside their result.
        hidden: sizes of the fully connected layers; None for those that are usual for the body.
        lstm: the size of an LSTM after the body; 0 for none.
        normalize: whether observations, apart from images, are normalised by their running mean and variance.
        shared: whether actor and critic share the body. Images and memory must be shared. None: as little as possible.
        values: how many the critic tells: one, or one for each of several tasks.
        first_spread: the standard deviation of continuous actions before anything is learned.

    Raises:
        ConfigError: the spaces do not fit the body, or the arguments each other.

    Example:
        >>> from gymnasium.spaces import Box, Discrete
        >>> make_network(Box(-1, 1, (4,)), Discrete(2), lstm=32).state
        (Leaf(shape=(32,), dtype=dtype('float32')), Leaf(shape=(32,), dtype=dtype('float32')))
    """
    hidden = layers_of(body, hidden, lstm)
    apart = body == "mlp" and lstm == 0
    if shared is False and not apart:
        what = f"lstm={lstm}" if body == "mlp" else f"body={body!r}"
        raise ConfigError(f"shared=False with {what}: actor and critic must share it. Leave shared out.")
    if apart and not shared:
        return ActorCritic(
            observation_space,
            action_space,
            hidden=hidden,
            normalize=normalize,
            values=values,
            first_spread=first_spread,
        )
    if body == "mlp":
        looks: VectorBody | ImageBody = VectorBody(observation_space, hidden, normalize=normalize)
    else:
        looks = ImageBody(observation_space, body, hidden, normalize=normalize)
    return SharedActorCritic(looks, action_space, lstm=lstm, values=values, first_spread=first_spread)


def layers_of(body: str, hidden: Sequence[int] | None, lstm: int = 0) -> tuple[int, ...]:
    """The sizes of the fully connected layers of a body: those that are asked for, or those that are usual.

    Raises:
        ConfigError: there is no such body, or a size is no size.

    Example:
        >>> layers_of("nature", None)
        (512,)
    """
    if body not in get_args(Body):
        raise ConfigError(unknown("body", str(body), get_args(Body)))
    sizes = _HIDDEN[body] if hidden is None else tuple(hidden)
    if any(size < 1 for size in sizes) or lstm < 0:
        raise ConfigError(f"hidden={sizes} and lstm={lstm}: sizes of layers must be positive (lstm=0 means none).")
    return sizes
