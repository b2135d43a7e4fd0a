"""For tests of code that runs on clusters: environments and hosts that misbehave, and proofs that nothing was lost."""

from clusterenv.testing.chaos_env import Chaos, ChaosEnv, ChaosError
from clusterenv.testing.echo import EchoEnv, EchoPolicy, Place, echo_module, echo_slots
from clusterenv.testing.history import History, Violation, check_history
from clusterenv.testing.network import NetHost, Network, why_not

__all__ = [
    "Chaos",
    "ChaosEnv",
    "ChaosError",
    "EchoEnv",
    "EchoPolicy",
    "History",
    "NetHost",
    "Network",
    "Place",
    "Violation",
    "check_history",
    "echo_module",
    "echo_slots",
    "why_not",
]
