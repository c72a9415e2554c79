"""The import path for addresses of this machine; see ``horovod.launch.others``."""

from horovod.launch.others.machines import (
    filter_local_addresses,
    get_local_host_addresses,
)

__all__ = [
    "filter_local_addresses",
    "get_local_host_addresses",
]
