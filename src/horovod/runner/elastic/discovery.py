"""The import path for the discovery of hosts; the code is in ``horovod.launch.others``."""

from horovod.launch.others.discovery import (
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
