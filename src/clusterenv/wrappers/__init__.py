"""Gymnasium wrappers that run on the workers: `make_vec(..., wrappers=[LastActionReward])`.

They need NumPy and Gymnasium alone, and every host of a cluster knows them by name.
"""

from clusterenv.wrappers.last import LastActionReward
from clusterenv.wrappers.quiet import KeepInfos
from clusterenv.wrappers.task import ShowTask

__all__ = ["KeepInfos", "LastActionReward", "ShowTask"]
