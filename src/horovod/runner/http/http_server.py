"""The import path for the store of launchers; the code is in ``horovod.launch.others``."""

from horovod.launch.others.rendezvous_server import (
    KVStoreServer,
    RendezvousServer,
)

__all__ = [
    "KVStoreServer",
    "RendezvousServer",
]
