"""Which way a host reaches the job's store."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.errors import InitError
from horovod.rendezvous.store import StoreClient

__all__ = ["reachable_store"]


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
