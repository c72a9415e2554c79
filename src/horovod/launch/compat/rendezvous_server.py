"""The job's store for launchers that start the workers themselves, and values in it.

Such a launcher sets its workers' ranks and the server's address. The store's secret is in the
environment of the launcher's process; workers on this machine that do not inherit it get it by
``secret_socket``.
"""

from __future__ import annotations

import base64
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

import cloudpickle

from horovod.launch.compat.hosts import SlotInfo
from horovod.launch.workers.addresses import interface_addresses
from horovod.rendezvous.base.authentication import SECRET_BYTES
from horovod.rendezvous.bootstrap import secret_in
from horovod.rendezvous.identity.secret_socket import SecretSocket, ask_for_secret
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.proven_values import ProvenValues
from horovod.rendezvous.store.server import StoreServer

_SECRET = "_HOROVOD_SECRET_KEY"
_LOOPBACK = "127.0.0.1"
_ATTEMPTS = 20  # at a port that is free at all addresses
_TAKEN = "no Unix socket for it can be had, or another user has taken all names"
_TIMEOUT_S = 30.0
_ROLE = b"horovod launcher's values"
_lock = threading.Lock()


def own_secret() -> bytes:
    """The secret of this process's jobs, which is then in its environment.

    Raises:
        InitError: the environment has an invalid secret.
    """
    with _lock:
        secret = secret_in(os.environ)
        if not secret:
            secret = os.urandom(SECRET_BYTES)
            os.environ[_SECRET] = base64.b64encode(secret).decode()
        return secret


class KVStoreServer:
    """A store in this process, at one port of all its addresses; its secret is ``own_secret``."""

    def __init__(self, verbose: int = 0) -> None:
        self._verbose = verbose
        self._server: StoreServer | None = None
        self._secrets: SecretSocket | None = None

    def start_server(self) -> int:
        """Start to serve; returns the port.

        Raises:
            RuntimeError: it serves already.
            OSError: no port is free.
        """
        if self._server is not None:
            raise RuntimeError(f"{type(self).__name__} serves already, at {self._server.address}")
        server, self._secrets = _listen_with_secret(own_secret())
        server.start()
        self._server = server
        port = server.address[1]
        if self._verbose:
            hosts = ", ".join(host for host, _ in server.addresses)
            print(f"horovod: store at port {port} of {hosts}", file=sys.stderr)
        return port

    def shutdown_server(self) -> None:
        """Stop serving; blocks until its threads have ended. May be repeated."""
        server, self._server = self._server, None
        secrets, self._secrets = self._secrets, None
        if secrets is not None:
            secrets.close()
        if server is not None:
            server.close()


class RendezvousServer(KVStoreServer):
    """The rendezvous of a job of fixed size whose workers another launcher starts.

    Each worker needs ``HOROVOD_RANK``, ``HOROVOD_SIZE``, the same with ``LOCAL_`` and ``CROSS_``,
    and ``HOROVOD_GLOO_RENDEZVOUS_ADDR`` and ``_PORT``: an address of this machine, and the port.
    """

    def __init__(self, verbose: int = 0) -> None:
        super().__init__(verbose)
        self._has_begun = False

    def start(self, handler_cls: Any = None) -> int:
        """Start to serve; returns the port. Raises as ``start_server``.

        Raises:
            ValueError: ``handler_cls`` asks for an elastic job.
        """
        if handler_cls is not None:
            raise ValueError(
                "RendezvousServer.start: handler_cls is for the original's elastic driver; use "
                "horovodrun --host-discovery-script or horovod.run (docs/migrating.md)"
            )
        return self.start_server()

    def init(self, host_assignments: Sequence[SlotInfo]) -> None:
        """Prepare for the workers of a job, which start afterwards; an earlier job must have ended.

        Raises:
            ValueError: the slots are not those of one world.
            RuntimeError: ``start`` has not been called.
        """
        if self._server is None:
            raise RuntimeError("RendezvousServer.init: call start first, which gives the port")
        ranks = [slot.rank for slot in host_assignments]
        sizes = {slot.size for slot in host_assignments}
        if not ranks or sorted(ranks) != list(range(len(ranks))) or sizes != {len(ranks)}:
            raise ValueError(
                f"RendezvousServer.init: ranks {ranks} with sizes {sorted(sizes)}: expected a slot "
                "for each rank of one world, as get_host_assignments makes them"
            )
        if self._has_begun:
            self._server.drop("")
        self._has_begun = True

    def stop(self) -> None:
        """See ``shutdown_server``."""
        self.shutdown_server()


def put_value(addr: str, port: int, scope: str, key: str, value: Any) -> None:
    """Put ``value``, pickled, into a ``KVStoreServer``.

    Raises:
        InitError: there is no such server, or it belongs to another job.
    """
    secret = _secret_for(port)
    with closing(StoreClient((addr, port), secret, timeout_s=_TIMEOUT_S)) as store:
        ProvenValues(store, secret, _ROLE).put(f"{scope}/{key}", cloudpickle.dumps(value))


def get_value(addr: str, port: int, scope: str, key: str) -> Any:
    """The value that a process with the secret has put there, unpickled; waits 30 s for it.

    Raises:
        InitError: as ``put_value``.
        TimeoutError: no process has put it there in time.
        UnprovenError: it was altered.
    """
    secret = _secret_for(port)
    with closing(StoreClient((addr, port), secret, timeout_s=_TIMEOUT_S)) as store:
        found = ProvenValues(store, secret, _ROLE).take(f"{scope}/{key}", _TIMEOUT_S)
    if found is None:
        raise TimeoutError(f"no process has put {scope}/{key} within {_TIMEOUT_S:g} s")
    return cloudpickle.loads(found)


def _secret_for(port: int) -> bytes:
    return secret_in(os.environ) or ask_for_secret(port, _TIMEOUT_S)


def _listen_with_secret(secret: bytes) -> tuple[StoreServer, SecretSocket | None]:
    """A server, and the socket that gives its secret, whose name belongs to the server's port."""
    for _ in range(_ATTEMPTS):
        server = _listen_everywhere(secret)
        with suppress(OSError):
            return server, SecretSocket(server.address[1], secret)
        server.close()
    print(f"horovod: workers need {_SECRET} in their environment: {_TAKEN}", file=sys.stderr)
    return _listen_everywhere(secret), None


def _listen_everywhere(secret: bytes) -> StoreServer:
    """A server at one port of every address of this machine."""
    others = [host for host in interface_addresses() if host != _LOOPBACK]
    for _ in range(_ATTEMPTS):
        server = StoreServer(secret)
        port = server.address[1]
        try:
            server.listen([(host, port) for host in others])
            return server
        except OSError as error:
            server.close()
            reason = error
    raise OSError(f"no port is free at all of {_LOOPBACK}, {', '.join(others)}: {reason}")
