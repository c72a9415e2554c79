"""Connects the pods of a job: arrivals, failures, and a barrier after each line.

Pod 0 runs a store for the pods, and for each line a second store for its ranks, as a launcher does.
A pod that fails writes the reason into the pods' store. A thread of every pod waits for a failure
there; then, or when pod 0 is gone, it ends its pod with SIGTERM.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType

from horovod.core.base.checked import BadMessageError, printable
from horovod.errors import InitError
from horovod.launch.model.host_plan import Rendezvous
from horovod.rendezvous.base.authentication import prove
from horovod.rendezvous.store.channel import StoreUnreachableError
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

_FAILURE = "failure"
_RETRY_S = 0.5
_GOODBYE_S = 10.0
# A request is repeated after this time.
_REQUEST_S = 3600.0
_SHOWN = 16


@dataclass(frozen=True)
class Pod:
    """One pod of ``count``. ``store`` is the name and port of the pods' store in pod 0."""

    index: int
    count: int
    store: tuple[str, int]
    secret: bytes = field(repr=False)


class PodRendezvous:
    """Connects the pods within ``with``; they wait ``timeout_s`` for each other.

    Entering raises InitError if pods do not arrive, or do not have the secret.
    """

    def __init__(self, pod: Pod, timeout_s: float) -> None:
        self._pod = pod
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._resources = ExitStack()
        self._addresses: list[str] = []  # of this pod, if it is pod 0
        self._is_over = False

    def __enter__(self) -> PodRendezvous:
        with ExitStack() as resources:
            if self._pod.index == 0:
                self._addresses = self._own_addresses()
                resources.enter_context(self._open_store())
            self._client = resources.enter_context(contextlib.closing(self._connect()))
            self._arrive()
            news = resources.enter_context(contextlib.closing(self._connect()))
            threading.Thread(
                target=self._await_failure, args=(news,), name="horovod-pods", daemon=True
            ).start()
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and not self._is_over:
            self.fail(str(error) if isinstance(error, Exception) else "was ended")
        self._is_over = True
        self._resources.close()

    def rendezvous_of(self, line: int) -> Rendezvous:
        """The rendezvous of the ranks of line number ``line``, with a secret of its own."""
        secret = prove(self._pod.secret, b"horovod line", str(line).encode())
        key = f"store/{line}"
        if self._pod.index == 0:
            addresses = [(self._addresses[0], 0)]
            server = self._resources.enter_context(StoreServer(secret, addresses=addresses))
            self._client.set(key, " ".join(map(str, server.address)).encode())
        return Rendezvous(*_address_in(_ask(self._client, key)), secret)

    def finish(self, line: int) -> None:
        """Wait until all pods have finished the line. If a pod fails, this process ends."""
        key = f"end/{line}"
        self._client.set(f"{key}/{self._pod.index}", b"")
        if self._pod.index == 0:
            for index in range(1, self._pod.count):
                _ask(self._client, f"{key}/{index}")
            self._client.set(key, b"")
        _ask(self._client, key)

    def fail(self, reason: str) -> None:
        """Tell the other pods that the job has failed."""
        self._is_over = True
        with contextlib.suppress(InitError):
            self._client.set(_FAILURE, f"pod {self._pod.index}: {reason}".encode())

    def leave(self) -> None:
        """The job has finished. Pod 0 waits until the others know."""
        self._is_over = True
        with contextlib.suppress(InitError, TimeoutError):
            if self._pod.index > 0:
                self._client.set(f"leave/{self._pod.index}", b"")
            else:
                deadline = time.monotonic() + _GOODBYE_S
                for index in range(1, self._pod.count):
                    self._client.get(f"leave/{index}", max(0.0, deadline - time.monotonic()))

    def _open_store(self) -> StoreServer:
        addresses = [(address, self._pod.store[1]) for address in self._addresses]
        try:
            return StoreServer(self._pod.secret, addresses=addresses)
        except OSError as error:
            raise InitError(f"cannot listen at port {self._pod.store[1]}: {error}") from None

    def _own_addresses(self) -> list[str]:
        """The addresses of pod 0's name, which DNS may not have yet; pod 0 listens only there."""
        name, port = self._pod.store
        while True:
            try:
                found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
                return list(dict.fromkeys(str(address[0]) for *_, address in found))
            except OSError as error:
                if not self._remaining_s():
                    raise InitError(f"{name} is no name of this pod: {error}") from None
            time.sleep(_RETRY_S)

    def _connect(self) -> StoreClient:
        while True:
            try:
                timeout_s = max(self._remaining_s(), _RETRY_S)
                return StoreClient(self._pod.store, self._pod.secret, timeout_s=timeout_s)
            except StoreUnreachableError as error:
                if not self._remaining_s():
                    raise InitError(
                        f"pod 0 did not come within {self._timeout_s:g} s: {error}"
                    ) from None
            time.sleep(_RETRY_S)

    def _arrive(self) -> None:
        """Wait for all pods."""
        self._client.set(f"arrival/{self._pod.index}", b"")
        if self._pod.index == 0:
            missing = [index for index in range(self._pod.count) if not self._has_come(index)]
            if missing:
                shown = ", ".join(map(str, missing[:_SHOWN])) + ("..." if missing[_SHOWN:] else "")
                raise InitError(
                    f"{len(missing)} of {self._pod.count} pods did not come within "
                    f"{self._timeout_s:g} s: {shown}"
                )
            self._client.set("arrival", b"")
        try:
            self._client.get("arrival", self._remaining_s())
        except TimeoutError:
            raise InitError(f"not all pods came within {self._timeout_s:g} s") from None

    def _has_come(self, index: int) -> bool:
        try:
            self._client.get(f"arrival/{index}", self._remaining_s())
        except TimeoutError:
            return False
        return True

    def _remaining_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _await_failure(self, news: StoreClient) -> None:
        reason = "pod 0 is gone"
        with contextlib.suppress(InitError, ValueError):
            reason = _ask(news, _FAILURE).decode(errors="replace")
        if not self._is_over:
            self._is_over = True
            print(f"horovodrun: ending this pod: {reason}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)


def _ask(client: StoreClient, key: str) -> bytes:
    while True:
        with contextlib.suppress(TimeoutError):
            return client.get(key, _REQUEST_S)


def _address_in(value: bytes) -> tuple[str, int]:
    """The host and port of a store in pod 0's message; raises InitError."""
    host, _, port = value.decode(errors="replace").partition(" ")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        port = ""
    if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536):
        found = printable(repr(value[:80]))
        error = BadMessageError("store", "address", found, "an address and a port", "pod 0")
        raise InitError(str(error))
    return host, int(port)
