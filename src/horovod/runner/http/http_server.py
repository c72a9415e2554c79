"""The import path for the store of launchers; the code is in ``horovod.launch.compat``."""

from horovod.launch.compat.rendezvous_server import KVStoreServer, RendezvousServer

__all__ = ["KVStoreServer", "RendezvousServer"]
