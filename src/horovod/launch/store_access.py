"""The job's store from both ends: where the launcher opens it, and which way a host reaches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from horovod.errors import InitError
from horovod.rendezvous.store import StoreClient
from horovod.rendezvous.store_server import StoreServer

__all__ = ["LOOPBACK", "open_store", "reachable_store"]

LOOPBACK = "127.0.0.1"


def open_store(
    secret: bytes, addresses: Sequence[str], report: Callable[[str], None]
) -> tuple[StoreServer, tuple[tuple[str, int], ...]]:
    """A store that listens at ``addresses``, and what to tell those who shall find it.

    Raises:
        OSError: one of them cannot be used.
    """
    server = StoreServer(secret, report=report)
    return server, (server.address,)


def reachable_store(
    stores: Sequence[tuple[str, int]], secret: bytes, timeout_s: float
) -> tuple[str, int]:
    """The first of ``stores`` that answers from here and knows the secret.

    Raises:
        InitError: none does; the text says why, one by one.
    """
    reasons = []
    for store in stores:
        try:
            StoreClient(store, secret, timeout_s=timeout_s).close()
        except InitError as error:
            reasons.append(str(error))
            continue
        return store
    raise InitError("; ".join(reasons))
