"""What a process does for those that are about to join, and before it joins itself.

Rank 0 serves the parts of its state (``part_server.py``) and says in the job's store where. A
process that is about to join asks there. All of it is for speed: without a store, a server or an
answer, the state follows when the process has joined.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from horovod.core import world
from horovod.core.base import threads
from horovod.core.base.checked import BadMessageError
from horovod.elastic.state import State
from horovod.errors import InitError
from horovod.rendezvous.bootstrap import (
    launcher_address,
    listening_hosts,
    new_launcher_store,
    secret_in,
)

# Server and client are imported where they are used: few processes have one.
if TYPE_CHECKING:
    from horovod.elastic.part_server import PartServer
    from horovod.elastic.parts import PartServerAddresses

_log = logging.getLogger("horovod.elastic")

_KEY = "elastic/parts"  # of the store
_STORE_S = 5.0
_PART_OF_TIMEOUT = 0.5  # of the time in which the driver expects a process to ask for its place


class PartService:
    """The server of this process, while it is rank 0. One thread at a time."""

    def __init__(self) -> None:
        self._server: PartServer | None = None
        self._spans_hosts = False

    def begin(self, state: State) -> None:
        """Serve the parts of ``state`` if this process is rank 0 now, else do not any more."""
        self._spans_hosts |= world.cross_size() > 1
        parts, secret = state._parts(), secret_in(os.environ)
        is_open = world.settings().link_protection != "encrypted"
        if parts is None or not secret or world.rank() != 0 or not is_open:
            self.end(state)
            return
        from horovod.elastic.part_server import PartServer
        from horovod.elastic.parts import PartServerAddresses

        if self._server is None:
            spans_hosts = self._spans_hosts or _is_elsewhere(os.environ)
            try:
                hosts = listening_hosts(os.environ, spans_hosts)
                self._server = PartServer(parts, secret, hosts)
            except (InitError, OSError) as error:
                _log.warning("cannot serve the state to ranks that join later: %s", error)
                return
        state._part_server = self._server
        _publish(PartServerAddresses(self._server.addresses))

    def end(self, state: State) -> None:
        """Serve nothing any more."""
        server, self._server, state._part_server = self._server, None, None
        if server is not None:
            server.close()


@contextmanager
def receiving_parts(state: State) -> Iterator[None]:
    """First wait until the parts of the state that others have are here; blocks for a limited time.

    Inside, changes go on to arrive.

    Raises:
        MisfitError: the state of this process is not like that of the others.
    """
    parts = state._parts()
    secret = secret_in(os.environ)
    if parts is None or not secret:
        yield
        return
    from horovod.elastic.part_client import PartClient

    client = PartClient(parts, secret, _find_server)
    try:
        client.wait(world.settings().elastic_timeout_s * _PART_OF_TIMEOUT)
        yield
    finally:
        client.stop()
        count = len(client.numbers)
        _log.info("%d of %d parts of the state came before this process joined", count, len(parts))


def _is_elsewhere(environ: Mapping[str, str]) -> bool:
    """Whether the launcher's store is reached by another address than loopback."""
    try:
        return not ipaddress.ip_address(launcher_address(environ)).is_loopback
    except ValueError:
        return True  # a name


def _find_server() -> PartServerAddresses:
    """Where rank 0 serves parts. Raises TimeoutError if it does not, InitError without a store."""
    from horovod.elastic.parts import PartServerAddresses

    store = new_launcher_store(os.environ, _STORE_S)
    try:
        said = store.get(_KEY, 0.0)
        return PartServerAddresses.from_bytes(said)
    except BadMessageError as error:
        raise InitError(f"init: {error.of('the store')}") from None
    finally:
        store.close()


def _publish(addresses: PartServerAddresses) -> None:
    """Say where this process serves parts, without waiting for the store."""

    def say() -> None:
        with suppress(InitError):
            store = new_launcher_store(os.environ, _STORE_S)
            try:
                store.set(_KEY, addresses.to_bytes())
            finally:
                store.close()

    with suppress(OSError):  # no thread: new processes find no address, and get all in ``sync``
        threads.start(threading.Thread(target=say, name="horovod-parts", daemon=True))
