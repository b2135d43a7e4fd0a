"""Networks for the learners: for any observation and action space that lies in arrays, with or without memory.

The modules are "native" policies: they have a `distribution`, and `forward(obs, state)` returns the distribution's
parameters, the value and the state. All that acting needs, the running mean of the observations too, is in the
parameters and buffers, so it travels with the version. `unroll` is the same computation for the learner, on a batch.
"""

from clusterenv.learners.common.networks.actor_critic import ActorCritic
from clusterenv.learners.common.networks.base import Network, Unrolled
from clusterenv.learners.common.networks.encoding import Encoder, Normalizer
from clusterenv.learners.common.networks.layers import mlp
from clusterenv.learners.common.networks.make import Body, make_network
from clusterenv.learners.common.networks.q_network import QNetwork, UnrolledQ, make_q_network
from clusterenv.learners.common.networks.shared import SharedActorCritic

__all__ = [
    "ActorCritic",
    "Body",
    "Encoder",
    "Network",
    "Normalizer",
    "QNetwork",
    "SharedActorCritic",
    "Unrolled",
    "UnrolledQ",
    "make_network",
    "make_q_network",
    "mlp",
]
