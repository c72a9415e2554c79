"""The import path for addresses of this machine; see ``horovod.launch.compat``."""

from horovod.launch.compat.machines import filter_local_addresses, get_local_host_addresses

__all__ = ["filter_local_addresses", "get_local_host_addresses"]
