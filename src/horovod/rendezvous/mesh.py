"""Turns N processes of one host into authenticated peers that share a region of memory.

Called by ``meet``, on the thread that called ``init``. Local rank 0 makes the region and listens;
the others find it through the store. Nothing here outlives the call except the returned ``Mesh``.
"""

from __future__ import annotations

import sys

from horovod.errors import InitError
from horovod.rendezvous.handshake import Claims
from horovod.rendezvous.identity import Identity
from horovod.rendezvous.membership import Deadline, Mesh
from horovod.rendezvous.mesh_peer import join_mesh
from horovod.rendezvous.mesh_root import host_mesh
from horovod.rendezvous.store import Store

__all__ = ["Mesh", "connect"]


def connect(
    identity: Identity,
    store: Store,
    secret: bytes,
    generation: int,
    region_bytes: int,
    timeout_s: float,
) -> Mesh:
    """Meet all ranks of this world, which must be on this host, and share ``region_bytes``.

    Every rank calls it with the same ``size``, ``generation`` (a new one for every attempt) and
    ``region_bytes``. Blocks until all have come and each holds everything, or none does; for up to
    ``timeout_s``, or twice that on a rank that came long before rank 0.

    Raises:
        InitError: ranks are missing, died, disagree or do not know the secret; the text names them.
    """
    if identity.local_size != identity.size:
        raise InitError(
            f"init: {identity.size} ranks, {identity.local_size} of them on {identity.hostname}; "
            "this version connects the ranks of one machine only"
        )
    if sys.platform != "linux":
        raise InitError("init: more than one rank needs Linux in this version")
    claims = Claims(identity.rank, identity.size, generation, region_bytes)
    key = f"mesh/{identity.scope}{generation}"
    meet = host_mesh if identity.rank == 0 else join_mesh
    return meet(claims, key, store, secret, Deadline(timeout_s))
