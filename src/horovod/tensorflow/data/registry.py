"""Where training ranks and compute workers find each other: who serves at which address.

A store (``horovod.rendezvous.store.client``) inside compute worker 0, on the loopback interface,
and a client in every other process. Both sides of a connection prove that they know the config's
key before anything is parsed. Only addresses and notes of a few bytes pass through it; the data
goes through TensorFlow's own servers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from horovod.errors import InitError, TimeoutException
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

__all__ = ["ComputeClient", "serve"]

Addresses = Mapping[str, Sequence[tuple[str, int]]]

_CONNECT_TIMEOUT_S = 30.0
_LEAVE_TIMEOUT_S = 30.0
_POLL_S = 60.0  # how long the store parks one question of a wait without an end of its own


@contextlib.contextmanager
def serve(key: bytes) -> Iterator[dict[str, list[tuple[str, int]]]]:
    """A registry that lives as long as the block; yields its addresses by interface."""
    with StoreServer(key) as server:
        yield {"lo": [server.address]}


class ComputeClient:
    """A connection to the registry at one of ``addresses``.

    Constructed, it is connected and both sides have proved that they know ``key``. One thread uses
    it at a time.

    Raises:
        ConnectionError: nobody listens there, or whoever does has another key. Every method
            raises it when the compute job has ended.
    """

    def __init__(self, addresses: Addresses, key: bytes, *, verbose: int = 1) -> None:
        self._verbose = verbose
        self._store = _connect([each for at in addresses.values() for each in at], key)

    def register_dispatcher(self, dispatcher: int, address: str) -> None:
        """Make ``address`` (``grpc://host:port``) known as that dispatcher's.

        Raises:
            RuntimeError: that dispatcher has been registered before.
        """
        if self._has(f"dispatcher/{dispatcher}"):
            raise RuntimeError(
                f"compute service: dispatcher {dispatcher} is registered already; a compute job "
                "serves one training job and, with dispatchers on its side, one tf_data_service"
            )
        self._set(f"dispatcher/{dispatcher}", address)

    def wait_for_dispatcher(self, dispatcher: int, timeout: float) -> str:
        """That dispatcher's address; blocks until it is registered.

        Raises:
            TimeoutException: it was not, within ``timeout`` seconds.
        """
        return self._get(f"dispatcher/{dispatcher}", time.monotonic() + timeout, timeout)

    def register_worker(self, worker: int) -> None:
        """Compute worker ``worker`` serves."""
        self._set(f"worker/{worker}", "")

    def wait_for_workers(self, workers: Iterable[int], timeout: float) -> None:
        """Block until all of them serve, or raise TimeoutException after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        for worker in workers:
            self._get(f"worker/{worker}", deadline, timeout)

    def leave(self, name: str) -> None:
        """Whoever waits with ``wait_for_leaving`` need not wait for ``name`` any longer."""
        self._set(f"left/{name}", "")

    def wait_for_leaving(self, names: Iterable[str], timeout: float = _LEAVE_TIMEOUT_S) -> bool:
        """Block until all have left, ``timeout`` seconds at most; whether they have."""
        deadline = time.monotonic() + timeout
        try:
            for name in names:
                self._get(f"left/{name}", deadline, timeout)
        except TimeoutException:
            return False
        return True

    def shutdown(self) -> None:
        """Tell all compute workers to end; does not wait for it."""
        self._set("shutdown", "")

    def wait_for_shutdown(self) -> None:
        """Block until somebody calls ``shutdown``, for as long as the registry lives."""
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
        with _lost_in_words():
            self._store.set(key, value.encode())

    def _get(self, key: str, deadline: float, timeout: float) -> str:
        try:
            with _lost_in_words():
                return self._store.get(key, max(deadline - time.monotonic(), 0.0)).decode()
        except TimeoutError:
            kind, _, number = key.partition("/")
            raise TimeoutException(
                f"compute service: no {kind} {number} within {timeout:g} s; is the compute job "
                "running, with as many processes as its config file says?"
            ) from None

    def _has(self, key: str, wait_s: float = 0.0) -> bool:
        try:
            with _lost_in_words():
                self._store.get(key, wait_s)
        except TimeoutError:
            return False
        return True


def _connect(addresses: Sequence[tuple[str, int]], key: bytes) -> StoreClient:
    """To the first that answers."""
    if not key:
        raise ValueError("compute service: an empty key proves nothing")
    failure = "no address is given"
    for host, port in addresses:
        try:
            return StoreClient((host, port), key, timeout_s=_CONNECT_TIMEOUT_S)
        except InitError as error:
            failure = error.reason
    raise ConnectionError(f"compute service: {failure}; is the config file of this compute job?")


@contextlib.contextmanager
def _lost_in_words() -> Iterator[None]:
    """The store speaks of ``init``, where it is used most."""
    try:
        yield
    except InitError as error:
        reason = error.reason
        raise ConnectionError(f"compute service: {reason}; the compute job has ended") from None
