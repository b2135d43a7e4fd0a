"""Clusters on other hosts: how many nodes, where they come from, and what is asked for them.

Frozen values, checked once, when they are made. Each can be written as a short text that means the same:

    tcp:nodes=2,workers=1                          node processes on this host, reached by TCP
    ssh://a,user@b:2222?workers=4&python=/opt/py   hosts reached by SSH
    slurm:nodes=4,partition=cpu,time=2:00:00       a job of a Slurm cluster
    ray:nodes=4,workers=8                          hosts of a Ray cluster
    k8s:nodes=8,image=me/envs:1                    pods of a Kubernetes cluster
    join:nodes=2,bind=0.0.0.0:5555                 machines on which somebody starts the node by hand

In a text, a comma, an ampersand, a space or a percent sign inside a value is written as in an address of the web: %2C,
%26, %20, %25. A key that takes several values is given several times: `imports=my_envs,imports=more_envs`.
"""

from clusterenv.clusters.addresses import Address, split_address
from clusterenv.clusters.base import INSECURE, MAX_NODES, MAX_WORKERS_PER_NODE, Remote, options_of
from clusterenv.clusters.join import Join
from clusterenv.clusters.kubernetes import Kubernetes
from clusterenv.clusters.ray import Ray
from clusterenv.clusters.slurm import Slurm
from clusterenv.clusters.ssh import Ssh
from clusterenv.clusters.tcp import Tcp
from clusterenv.clusters.texts import KINDS, parse_remote, values_of

__all__ = [
    "INSECURE",
    "KINDS",
    "MAX_NODES",
    "MAX_WORKERS_PER_NODE",
    "Address",
    "Join",
    "Kubernetes",
    "Ray",
    "Remote",
    "Slurm",
    "Ssh",
    "Tcp",
    "options_of",
    "parse_remote",
    "split_address",
    "values_of",
]
