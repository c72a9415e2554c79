"""The job's store inside rank 0, for jobs without a launcher of ours.

The other ranks get its addresses and the secret by a broadcast over MPI, or from a file that only
the user can read.
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


@dataclass(frozen=True)
class HostedStore:
    """Where the store listens, and the job's secret; ``server`` is None on all ranks but rank 0."""

    addresses: tuple[tuple[str, int], ...]
    secret: bytes = field(repr=False)
    server: StoreServer | None = None

    def to_bytes(self) -> bytes:
        """What the other ranks need. It contains the secret, so no other user may read it."""
        secret = base64.b64encode(self.secret).decode()
        return json.dumps({"addresses": self.addresses, "secret": secret}).encode()

    @classmethod
    def from_bytes(cls, message: bytes) -> HostedStore:
        """The inverse of ``to_bytes``; ValueError for anything else."""
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

    It listens on the loopback interface. With ``spans_hosts`` it listens at all addresses that
    other hosts may reach, only on ``interfaces`` if any are named.

    Raises:
        InitError: there is no such interface.
    """
    secret = os.urandom(SECRET_BYTES)
    from horovod.rendezvous.store.server import StoreServer  # other ranks do not need it

    hosts = _reachable(interfaces) if spans_hosts else []
    server = StoreServer(secret, addresses=[(host, 0) for host in hosts or ["127.0.0.1"]])
    server.start()
    return HostedStore(tuple(server.addresses), secret, server)


def _reachable(interfaces: Sequence[str]) -> list[str]:
    """Addresses that are not loopback or link-local."""
    found = local_addresses(interfaces)
    return [a.host for a in found if not (a.ip.is_loopback or a.ip.is_link_local)]
