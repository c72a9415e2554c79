"""The job's store inside rank 0, for jobs that no launcher of ours keeps one for.

How the other ranks get to know its addresses and the secret is up to what started them: a broadcast
over MPI, a file that only the user can read.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod.core.base.checked import Fields
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.base.interfaces import local_addresses

if TYPE_CHECKING:
    from horovod.rendezvous.store.server import StoreServer

__all__ = ["HostedStore", "start_store"]


@dataclass(frozen=True)
class HostedStore:
    """Where the store listens, and the job's secret; ``server`` is there on rank 0 only."""

    addresses: tuple[tuple[str, int], ...]
    secret: bytes = field(repr=False)
    server: StoreServer | None = None

    def encoded(self) -> bytes:
        """What the others need, secret included: for a way that nobody else can read."""
        secret = base64.b64encode(self.secret).decode()
        return json.dumps({"addresses": self.addresses, "secret": secret}).encode()

    @classmethod
    def decoded(cls, message: bytes) -> HostedStore:
        """The contrary of ``encoded``; ValueError for anything else."""
        try:
            fields = Fields.read("store", message)
            addresses = fields.addresses("addresses")
            secret = base64.b64decode(fields.text("secret", 1024), validate=True)
            fields.close()
        except ValueError as error:
            raise ValueError(f"no description of a store: {error}") from None
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a secret of {len(secret)} bytes; expected {SECRET_BYTES}")
        return cls(addresses, secret)


def start_store(spans_hosts: bool, interfaces: Sequence[str] = ()) -> HostedStore:
    """Serve a store in this process, with a new secret, until it is closed.

    It listens on the loopback interface; for several hosts on all addresses that they may reach, of
    ``interfaces`` alone if any are named.

    Raises:
        InitError: there is no such interface.
    """
    secret = os.urandom(SECRET_BYTES)
    from horovod.rendezvous.store.server import StoreServer  # no other rank needs it

    hosts = _reachable(interfaces) if spans_hosts else []
    server = StoreServer(secret, addresses=[(host, 0) for host in hosts or ["127.0.0.1"]])
    server.start()
    return HostedStore(tuple(server.addresses), secret, server)


def _reachable(interfaces: Sequence[str]) -> list[str]:
    """Addresses with a meaning beyond this machine and its links."""
    found = local_addresses(interfaces)
    return [a.host for a in found if not (a.ip.is_loopback or a.ip.is_link_local)]
