"""For tests of code that runs on clusters: hosts in network namespaces, whose links can be slowed and cut."""

from clusterenv.testing.network import NetHost, Network, why_not

__all__ = ["NetHost", "Network", "why_not"]
