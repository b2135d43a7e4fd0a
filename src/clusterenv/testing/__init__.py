"""For tests of code that runs on clusters: environments that misbehave, hosts whose links can be slowed and cut."""

from clusterenv.testing.chaos_env import Chaos, ChaosEnv, ChaosError
from clusterenv.testing.network import NetHost, Network, why_not

__all__ = ["Chaos", "ChaosEnv", "ChaosError", "NetHost", "Network", "why_not"]
