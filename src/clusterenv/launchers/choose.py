"""Which launcher starts the nodes of a cluster. Each is imported only when it is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterenv.clusters import Join, Kubernetes, Ray, Remote, Slurm, Ssh, Tcp
from clusterenv.errors import ConfigTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterenv.launchers.base import Launcher


def launcher_for(cluster: Remote) -> Launcher:
    """The launcher of a cluster; nothing is started yet.

    A cluster of somebody else's is a `Remote` with a method `launcher`, which returns it.

    Raises:
        ConfigError: it needs a library that is not installed; the message has the line that installs it.
    """
    if isinstance(cluster, Tcp):
        from clusterenv.launchers.processes import ProcessLauncher

        return ProcessLauncher(cluster)
    if isinstance(cluster, Ssh):
        from clusterenv.launchers.ssh import SshLauncher

        return SshLauncher(cluster)
    if isinstance(cluster, Slurm):
        from clusterenv.launchers.slurm import SlurmLauncher

        return SlurmLauncher(cluster)
    if isinstance(cluster, Ray):
        from clusterenv.launchers.ray import RayLauncher

        return RayLauncher(cluster)
    if isinstance(cluster, Kubernetes):
        from clusterenv.launchers.kubernetes import KubernetesLauncher

        return KubernetesLauncher(cluster)
    if isinstance(cluster, Join):
        from clusterenv.launchers.join import JoinLauncher

        return JoinLauncher(cluster)
    own: Callable[[], Launcher] | None = getattr(cluster, "launcher", None)
    if own is not None:
        return own()
    raise ConfigTypeError(
        f"cluster={cluster!r} has no launcher. Use Tcp, Ssh, Slurm, Ray, Kubernetes or Join, "
        "or give it a method launcher()."
    )
