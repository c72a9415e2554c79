"""How a default process group finds its world: the one of ``hvd``, or a new one.

A program that has called ``hvd.init()`` keeps its world. Else the processes of the group form one:
under ``horovodrun`` as ``hvd.init()`` would, otherwise through the store that
``init_process_group`` has opened. That store knows no secret, so rank 0 makes the world's and
publishes it there: a process that reaches torch's store can join (docs/security.md).
"""

from __future__ import annotations

import os
from dataclasses import replace

from torch.distributed import Store  # type: ignore[attr-defined]

from horovod.core import world
from horovod.rendezvous.bootstrap import ProcessInfo, drop_store, secret_in, use_store
from horovod.rendezvous.identity.environment import LAUNCHER, hostname_of
from horovod.rendezvous.identity.torchrun import TorchStore, agree_on_world
from horovod.settings import Settings

_store: Store | None = None  # of the default group
_prefix = ""  # of its keys in all stores


def store_of(store: Store) -> TorchStore:
    """A group's store, with keys of the current world alone; for several threads."""
    return TorchStore(store, f"horovod/{_prefix}", "torch.distributed's store")


def shared_store() -> Store:
    """The default group's store: for what all groups share.

    Raises:
        ValueError: the default group is not Horovod's.
    """
    if _store is None:
        raise ValueError(
            "new_group: a group of Horovod needs a default group of Horovod, found one of another "
            "backend; call init_process_group('horovod'), and new_group for the other backend"
        )
    return _store


def next_number(name: str, store: Store | None = None) -> int:
    """How often this number has been asked for before: in a group's store, else in the world."""
    return (store or shared_store()).add(f"horovod/{_prefix}{name}", 1) - 1


def join_world(store: Store, rank: int, size: int, timeout_s: float) -> bool:
    """Be ``rank`` of a world of ``size``; blocks until all are. Whether the world is a new one.

    Raises:
        ValueError: this process is in a world already, as another rank or of another size.
        InitError: (a ``ValueError``) ranks are missing or refused.
    """
    global _store, _prefix
    _store, _prefix = store, ""
    settings = Settings.from_env()
    limit_s = max(settings.start_timeout_s, timeout_s)
    identity = ProcessInfo(
        rank, size, hostname=hostname_of(os.environ), launcher="torch.distributed", scope="torch/"
    )
    _prefix, secret = agree_on_world(identity, store_of(store), secret_in(os.environ), limit_s)
    if not world.is_initialized() and _is_of_horovodrun(rank, size):
        world.init()
        is_new = True
    elif is_new := not world.is_initialized():
        use_store(identity, os.environ, store_of(store), secret)
        world.init_as(identity, replace(settings, start_timeout_s=limit_s))
    if (world.rank(), world.size()) != (rank, size):
        raise ValueError(
            f"init_process_group: this process is rank {world.rank()} of {world.size()} in "
            f"Horovod's world, and was to be rank {rank} of {size}; both must be the same"
        )
    return is_new


def leave_world() -> None:
    """End the world that began with the default group."""
    world.shutdown()
    drop_store("torch.distributed")


def forget_store() -> None:
    """The default group has ended: torch may close its store."""
    global _store
    _store = None


def _is_of_horovodrun(rank: int, size: int) -> bool:
    names = ("HOROVOD_RANK", "HOROVOD_SIZE")
    found = [os.environ.get(name) for name in names]
    return LAUNCHER in os.environ and found == [str(rank), str(size)]
