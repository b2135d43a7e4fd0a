"""For tests of code that runs on clusters: environments and hosts that misbehave, and proofs that nothing was lost."""

from clusterenv.testing.chaos_env import Chaos, ChaosEnv, ChaosError
from clusterenv.testing.cluster_contract import ClusterContract
from clusterenv.testing.contracts import ContractBroken, broken_rules
from clusterenv.testing.echo import EchoEnv, EchoPolicy, Place, echo_module, echo_slots
from clusterenv.testing.history import History, Violation, check_history
from clusterenv.testing.launcher_contract import LauncherContract
from clusterenv.testing.network import NetHost, Network, why_not
from clusterenv.testing.processes import Deed, Nemesis, nodes_of, workers_of
from clusterenv.testing.proxy import FaultProxy

__all__ = [
    "Chaos",
    "ChaosEnv",
    "ChaosError",
    "ClusterContract",
    "ContractBroken",
    "Deed",
    "EchoEnv",
    "EchoPolicy",
    "FaultProxy",
    "History",
    "LauncherContract",
    "Nemesis",
    "NetHost",
    "Network",
    "Place",
    "Violation",
    "broken_rules",
    "check_history",
    "echo_module",
    "echo_slots",
    "nodes_of",
    "why_not",
    "workers_of",
]
