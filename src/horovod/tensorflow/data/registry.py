"""The registry of a compute job: the addresses of dispatchers and the state of workers.

It is a store (``horovod.rendezvous.store``) in compute worker 0, on the loopback interface, with a
client in every other process. Both sides of a connection prove that they know the config's key
before they parse data. Only addresses and short notes go through it; TensorFlow's own servers send
the data.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from horovod.errors import InitError, TimeoutException
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

Addresses = Mapping[str, Sequence[tuple[str, int]]]

_CONNECT_TIMEOUT_S = 30.0
_LEAVE_TIMEOUT_S = 30.0
_POLL_S = 60.0  # the time of one request in a wait without a limit


@contextlib.contextmanager
def serve(key: bytes) -> Iterator[dict[str, list[tuple[str, int]]]]:
    """A registry within ``with``; yields its addresses by interface."""
    with StoreServer(key) as server:
        yield {"lo": [server.address]}


class ComputeClient:
    """A connection to the registry at one of ``addresses``, authenticated by ``key``.

    One thread may use it at a time.

    Raises:
        ConnectionError: there is no registry, or it has another key. Every method raises it when
            the compute job has ended.
    """

    def __init__(self, addresses: Addresses, key: bytes, *, verbose: int = 1) -> None:
        self._verbose = verbose
        self._store = _connect([each for at in addresses.values() for each in at], key)

    def register_dispatcher(self, dispatcher: int, address: str) -> None:
        """Register ``address`` (``grpc://host:port``) of a dispatcher.

        Raises:
            RuntimeError: the dispatcher is registered already.
        """
        if self._has(f"dispatcher/{dispatcher}"):
            raise RuntimeError(
                f"compute service: dispatcher {dispatcher} is registered already; a compute job "
                "serves one training job and, with dispatchers on its side, one tf_data_service"
            )
        self._set(f"dispatcher/{dispatcher}", address)

    def wait_for_dispatcher(self, dispatcher: int, timeout: float) -> str:
        """The address of a dispatcher; blocks until it is registered.

        Raises:
            TimeoutException: it was not registered within ``timeout`` seconds.
        """
        return self._get(f"dispatcher/{dispatcher}", time.monotonic() + timeout, timeout)

    def register_worker(self, worker: int) -> None:
        """Note that compute worker ``worker`` serves."""
        self._set(f"worker/{worker}", "")

    def wait_for_workers(self, workers: Iterable[int], timeout: float) -> None:
        """Block until all workers serve, or raise TimeoutException after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for worker in workers:
            self._get(f"worker/{worker}", deadline, timeout)

    def leave(self, name: str) -> None:
        """Note that ``name`` has left, for ``wait_for_leaving``."""
        self._set(f"left/{name}", "")

    def wait_for_leaving(self, names: Iterable[str], timeout: float = _LEAVE_TIMEOUT_S) -> bool:
        """Block until all names have left, ``timeout`` seconds at most; whether they have."""
        deadline = time.monotonic() + timeout
        try:
            for name in names:
                self._get(f"left/{name}", deadline, timeout)
        except TimeoutException:
            return False
        return True

    def shutdown(self) -> None:
        """Tell all compute workers to end; does not wait for their end."""
        self._set("shutdown", "")

    def wait_for_shutdown(self) -> None:
        """Block until ``shutdown`` is called."""
        while not self._has("shutdown", _POLL_S):
            pass

    def close(self) -> None:
        """End the connection; may be called twice."""
        self._store.close()

    def __enter__(self) -> ComputeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set(self, key: str, value: str) -> None:
        if self._verbose > 1:
            print(f"compute service: {key} {value}".rstrip(), flush=True)
        with _as_connection_error():
            self._store.set(key, value.encode())

    def _get(self, key: str, deadline: float, timeout: float) -> str:
        try:
            with _as_connection_error():
                return self._store.get(key, max(deadline - time.monotonic(), 0.0)).decode()
        except TimeoutError:
            kind, _, number = key.partition("/")
            raise TimeoutException(
                f"compute service: no {kind} {number} within {timeout:g} s; is the compute job "
                "running, with as many processes as its config file says?"
            ) from None

    def _has(self, key: str, wait_s: float = 0.0) -> bool:
        try:
            with _as_connection_error():
                self._store.get(key, wait_s)
        except TimeoutError:
            return False
        return True


def _connect(addresses: Sequence[tuple[str, int]], key: bytes) -> StoreClient:
    """A connection to the first address that answers."""
    if not key:
        raise ValueError("compute service: the key is empty")
    failure = "no address is given"
    for host, port in addresses:
        try:
            return StoreClient((host, port), key, timeout_s=_CONNECT_TIMEOUT_S)
        except InitError as error:
            failure = error.reason
    raise ConnectionError(f"compute service: {failure}; is the config file of this compute job?")


@contextlib.contextmanager
def _as_connection_error() -> Iterator[None]:
    """Raise the store's InitError as a ConnectionError."""
    try:
        yield
    except InitError as error:
        reason = error.reason
        raise ConnectionError(f"compute service: {reason}; the compute job has ended") from None
