"""Worlds of ranks as threads of one process, for tests of the rendezvous."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from horovod.errors import InitError
from horovod.rendezvous.identity.environment import ProcessInfo
from horovod.rendezvous.identity.host_id import HostId, this_host_id
from horovod.rendezvous.mesh import Mesh, connect
from horovod.rendezvous.store.client import Store

SECRET = b"s" * 32
REGION_BYTES = 1 << 16
HOST_NAME = "host{}"
Outcome = TypeVar("Outcome")


class MemoryStore:
    """A ``Store`` for threads."""

    is_closed = False

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(key)
            return self._values[key]

    def close(self) -> None:
        pass


def identity_of(rank: int, size: int) -> ProcessInfo:
    return ProcessInfo(rank, size, rank, size, 0, 1, "here", "horovodrun")


def join(
    rank: int,
    size: int,
    store: MemoryStore,
    *,
    secret: bytes = SECRET,
    generation: int = 1,
    region_bytes: int = REGION_BYTES,
    timeout_s: float = 60,
) -> Mesh:
    return connect(identity_of(rank, size), store, secret, generation, region_bytes, timeout_s)


def join_hosts(
    rank: int,
    layout: Sequence[Sequence[int]],
    store: Store,
    *,
    secret: bytes = SECRET,
    key: int = 1,
    timeout_s: float = 60,
    link_timeout_s: float = 30,
    interfaces: Sequence[str] = (),
    protection: str = "control",
    connections: int = 1,
    is_foreseen: bool = True,
) -> Mesh:
    """As ``join``; each group of ranks in ``layout`` is a host.

    ``is_foreseen``: this rank's launcher knows of the other hosts.
    """
    host = next(index for index, group in enumerate(layout) if rank in group)
    size = sum(map(len, layout))
    local_size = len(layout[host]) if is_foreseen else size
    identity = ProcessInfo(rank, size, 0, local_size, 0, 1, HOST_NAME.format(host), "horovodrun")
    host_id = HostId(f"host {host}", this_host_id().network)
    return connect(
        identity,
        store,
        secret,
        key,
        REGION_BYTES,
        timeout_s,
        link_timeout_s=link_timeout_s,
        interfaces=interfaces,
        protection=protection,
        connections=connections,
        host_id=host_id,
    )


def outcomes(count: int, action: Callable[[int], Outcome]) -> list[Outcome | InitError]:
    """The results of ``action`` for ``count`` ranks, which run at the same time."""

    def one(rank: int) -> Outcome | InitError:
        try:
            return action(rank)
        except InitError as error:
            return error

    with ThreadPoolExecutor(max(1, count)) as pool:
        return list(pool.map(one, range(count)))


def meshes(size: int, action: Callable[[int], Mesh]) -> list[Mesh]:
    """As ``outcomes``; every rank must succeed."""
    found = []
    for outcome in outcomes(size, action):
        assert isinstance(outcome, Mesh), outcome
        found.append(outcome)
    return found
