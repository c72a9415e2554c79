"""The job's store inside rank 0, for jobs without a launcher of ours.

The other ranks get its addresses and the secret by a broadcast over MPI, or from a file that only
the user can read.

A store listens at several addresses of its machine and cannot know which of them other machines
reach. ``find_store`` finds out at which of them this machine reaches it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from horovod.core.base.checked import Fields
from horovod.errors import InitError
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.interfaces import local_addresses
from horovod.rendezvous.base.tcp import address_text
from horovod.rendezvous.store.client import StoreClient

if TYPE_CHECKING:
    from horovod.rendezvous.store.server import StoreServer


@dataclass(frozen=True)
class HostedStore:
    """Where the store listens, and the job's secret; ``server`` is None on all ranks but rank 0."""

    addresses: tuple[tuple[str, int], ...]
    secret: bytes = field(repr=False)
    server: StoreServer | None = None

    def to_bytes(self) -> bytes:
        """The message for the other ranks. It contains the secret, so no other user may read it."""
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

    hosts = reachable_hosts(interfaces) if spans_hosts else []
    server = StoreServer(secret, addresses=[(host, 0) for host in hosts or ["127.0.0.1"]])
    server.start()
    return HostedStore(tuple(server.addresses), secret, server)


def reachable_hosts(interfaces: Sequence[str]) -> list[str]:
    """Addresses that are not loopback or link-local."""
    found = local_addresses(interfaces)
    return [a.host for a in found if not (a.ip.is_loopback or a.ip.is_link_local)]


# How a store is found.

_STAGGER_S = 0.25
_LEAST_TRY_S = 0.1
_Ended = queue.SimpleQueue[tuple[tuple[str, int], "StoreClient | InitError"]]


def find_store(
    addresses: Sequence[tuple[str, int]], secret: bytes, timeout_s: float
) -> StoreClient:
    """A connection to the store at the first of ``addresses`` that proves to know ``secret``.

    Each address is tried a moment after the one before, without waiting for its answer. The
    client's ``address`` is the one that was found. Blocks for ``timeout_s`` at most.

    Raises:
        InitError: no address gave an authentic answer in time; the text has a reason for each.
    """
    deadline = Deadline(timeout_s)
    ended: _Ended = queue.SimpleQueue()
    reasons: dict[tuple[str, int], str] = {}
    waiting = list(addresses)
    under_way = 0
    try:
        while (waiting or under_way) and not deadline.has_passed:
            if waiting:
                _start(_try, waiting.pop(0), secret, deadline, ended)
                under_way += 1
            wait_s = _STAGGER_S if waiting else deadline.remaining_s()
            with contextlib.suppress(queue.Empty):
                address, result = ended.get(timeout=wait_s)
                under_way -= 1
                if isinstance(result, StoreClient):
                    return result
                reasons[address] = result.reason
    finally:
        if under_way:
            _start(_close_late, under_way, ended)
    shown = [f"  {address_text(a)}: {reasons.get(a, 'no answer')}" for a in addresses]
    raise InitError(
        f"init: the launcher's store cannot be reached within {timeout_s:g} s, at none of its "
        "addresses:\n" + "\n".join(shown)
    )


def _start(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, name="horovod-find-store", daemon=True).start()


def _try(address: tuple[str, int], secret: bytes, deadline: Deadline, ended: _Ended) -> None:
    left_s = max(deadline.remaining_s(), _LEAST_TRY_S)
    try:
        ended.put((address, StoreClient(address, secret, timeout_s=left_s)))
    except InitError as error:
        ended.put((address, error))


def _close_late(count: int, ended: _Ended) -> None:
    """Close the clients that succeed after the first one."""
    for _ in range(count):
        _, result = ended.get()
        if isinstance(result, StoreClient):
            result.close()
