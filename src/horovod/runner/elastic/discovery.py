"""The import path for the discovery of hosts; the code is in ``horovod.launch.compat``."""

from horovod.launch.compat.discovery import (
    DiscoveredHosts,
    FixedHosts,
    HostDiscovery,
    HostDiscoveryScript,
    HostManager,
    HostUpdateResult,
)

__all__ = [
    "DiscoveredHosts",
    "FixedHosts",
    "HostDiscovery",
    "HostDiscoveryScript",
    "HostManager",
    "HostUpdateResult",
]
