"""The import path for the errors that scripts catch; see ``horovod.errors`` for all of them."""

from horovod.errors import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HorovodVersionMismatchError", "HostsUpdatedInterrupt"]
