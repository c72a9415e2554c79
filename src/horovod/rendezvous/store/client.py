"""A key-value store that all ranks of a job can reach while they find each other.

``Store`` is what the bootstrap needs. ``StoreClient`` connects to a launcher's ``StoreServer``,
``torchrun.TorchStore`` to torchrun's store. One thread at a time uses a client. Its connection may
stay open without traffic for the life of the process.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from horovod.core.base.on_error import on_error
from horovod.errors import InitError
from horovod.rendezvous.base.tcp import address_text
from horovod.rendezvous.store import wire
from horovod.rendezvous.store.channel import LostError, SilentError, StoreChannel

# Prefix of the keys under which processes publish values for the report of their job.
REPORT_KEYS = "report/"

# A client waits longer than the server by this time: only a stopped server is that late.
_GRACE_S = 5.0

_REQUEST_S = 3600.0  # after which a wait without a limit asks again
_MOST_CERTAIN = 3  # failures in a row that prove that there is no store of this job
_PAUSE_S, _MOST_PAUSE_S = 0.05, 0.5
# The system drops connection requests at a flooded listener, so a new request soon is better.
_CONNECT_S, _MOST_CONNECT_S = 1.0, 8.0
_HANDSHAKE_S = 20.0  # longer: a connected client would lose its turn at the server
_RECONNECT_S = 5.0  # for a store that is lost after the start of the job


class Store(Protocol):
    """Small values under text keys, visible to every rank; a later ``set`` replaces the value."""

    def set(self, key: str, value: bytes) -> None:
        """Store ``value``; blocks until the store has it. InitError if the store is lost."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """The value of ``key``; blocks until some rank has set it.

        Raises:
            TimeoutError: it was not set within ``timeout_s``; the store stays usable.
            InitError: the store is lost.
        """

    def close(self) -> None:
        """End the connection; may be called twice."""


def wait_for(store: Store, key: str) -> bytes:
    """The value of ``key``, however long it takes; InitError if the store is lost."""
    while True:
        with contextlib.suppress(TimeoutError):
            return store.get(key, _REQUEST_S)


def set_and_wait_for(store: Store, key: str, value: bytes, wanted: str) -> bytes:
    """``set``, then ``wait_for`` of ``wanted``; at best in one round trip. Raises as both."""
    with contextlib.suppress(TimeoutError):
        return set_and_get(store, key, value, wanted, _REQUEST_S)
    return wait_for(store, wanted)


def set_and_get(store: Store, key: str, value: bytes, wanted: str, timeout_s: float) -> bytes:
    """``set``, then ``get`` of ``wanted``; one round trip where the store is our launcher's.

    Raises as both.
    """
    if isinstance(store, StoreClient):
        return store.set_and_get(key, value, wanted, timeout_s)
    store.set(key, value)
    return store.get(wanted, timeout_s)


def swap_and_get(
    store: Store,
    key: str,
    value: bytes,
    wanted: Sequence[tuple[str, float]],
    should_stop: Callable[[int, bytes | None], bool],
) -> list[bytes | None]:
    """What ``key`` was before ``set``, and the values of the keys ``wanted``; None: not there.

    As ``set_and_get`` in one round trip, if it can be. Each wanted key has a time to wait for it,
    in seconds, which begins when the key before has been found. ``should_stop`` is called with the
    number of each value when it is known; what follows is not waited for if it says so. InitError
    if the store is lost.
    """
    if isinstance(store, StoreClient):
        return store.swap_and_get(key, value, wanted, should_stop)
    found = [_value_or_none(store, key, 0.0)]
    store.set(key, value)
    for each, timeout_s in wanted:
        if should_stop(len(found) - 1, found[-1]):
            break
        found.append(_value_or_none(store, each, timeout_s))
    return found


def _value_or_none(store: Store, key: str, timeout_s: float) -> bytes | None:
    try:
        return store.get(key, timeout_s)
    except TimeoutError:
        return None


# With a key, the value to set, and how long to wait for it in seconds, if any.
_Asked = tuple[wire.Operation, str, bytes, float]
_IsLast = Callable[[int, bytes], bool]  # of the number of an answer and its body


class AbandonedError(InitError):
    """The key belongs to a world that has been given up; the text says why."""


class StoreClient:
    """A connection to the launcher's ``StoreServer`` at ``(host, port)``.

    ``host`` is a name or an IPv4 or IPv6 address. Of several addresses of a name, the first that
    can be connected is used. Construction connects and authenticates both sides within
    ``timeout_s``; until then it dials again when a connection is cut or gets no answer. After three
    failures in a row that prove that there is no store of this job (no listener, another secret) it
    gives up.

    When a connection is cut later, the client dials again until the same time, or for a few
    seconds, and sends its request again. The server does a request once.

    Raises:
        StoreUnreachableError: no process listens.
        InitError: the other side does not know the job's secret.
    """

    def __init__(self, address: tuple[str, int], secret: bytes, *, timeout_s: float) -> None:
        self.address = address
        self._secret = secret
        self._name = address_text(address)
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self._id = os.urandom(wire.CLIENT_BYTES)
        self._count = 0
        self._start_until = time.monotonic() + timeout_s
        self._channel = self._dial(self._attempts(self._start_until))

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended, by ``close`` or by an error."""
        return self._has_ended.is_set()

    def set(self, key: str, value: bytes) -> None:
        """See ``Store.set``; ValueError for keys over 255 bytes or values over about 64 KiB."""
        self._ask([_set(key, value)])

    def get(self, key: str, timeout_s: float) -> bytes:
        """See ``Store.get``."""
        return _found(key, self._ask([_get(key, timeout_s)])[-1], timeout_s)

    def set_and_get(self, key: str, value: bytes, wanted: str, timeout_s: float) -> bytes:
        """``set`` of a value, then ``get`` of the key ``wanted``, in one round trip."""
        answers = self._ask([_set(key, value), _get(wanted, timeout_s)])
        return _found(wanted, answers[-1], timeout_s)

    def swap_and_get(
        self,
        key: str,
        value: bytes,
        wanted: Sequence[tuple[str, float]],
        should_stop: Callable[[int, bytes | None], bool],
    ) -> list[bytes | None]:
        """See the function of this name."""
        asked = [_get(key, 0.0), *(_get(*each) for each in wanted)]
        asked.insert(1, _set(key, value))
        found: list[bytes | None] = []

        def is_last(number: int, answer: bytes) -> bool:
            if number == 0:
                found.clear()  # asked again over another connection
            if number == 1:  # of the ``set``
                return False
            found.append(_value_in(answer))
            return number < len(asked) - 1 and should_stop(len(found) - 1, found[-1])

        self._ask(asked, is_last)
        return found

    def close(self) -> None:
        """See ``Store.close``."""
        self._has_ended.set()
        self._channel.close()

    def _ask(
        self,
        asked: Sequence[_Asked],
        is_last: _IsLast = lambda number, answer: False,
    ) -> list[bytes]:
        """The bodies of the answers to these requests.

        Answers after one that ``is_last`` are not waited for.
        """
        with self._lock:
            if self.is_closed:
                raise InitError(f"init: the connection to the store at {self._name} has ended")
            requests = [self._request(*each) for each in asked]
            # Interrupted before the answer, the next request would take it for its own.
            with on_error(self.close):
                answers = self._exchange(requests, is_last)
            if len(answers) < len(asked):
                self._channel.close()  # one is outstanding; the next request dials again
        for (_, key, *_), body in zip(asked, answers, strict=False):
            if body[0] == wire.Status.ABANDONED:
                raise AbandonedError(f"init: {body[1:].decode(errors='replace')}")
            if body[0] == wire.Status.FULL:
                text = body[1:].decode(errors="replace")
                raise InitError(f"init: {key!r} cannot be set: {text}")
        return answers

    def _request(
        self, operation: wire.Operation, key: str, value: bytes, timeout_s: float
    ) -> wire.Request:
        self._count += 1
        timeout_ms = math.ceil(timeout_s * 1000)
        request = wire.Request(operation, key.encode(), value, timeout_ms, self._id, self._count)
        wire.check_size(request.to_bytes())
        return request

    def _exchange(self, requests: Sequence[wire.Request], is_last: _IsLast) -> list[bytes]:
        """The bodies of the answers, over this connection or a later one."""
        start = time.monotonic()
        attempts: _Attempts | None = None
        while True:
            passed_ms = int((time.monotonic() - start) * 1000)
            left_ms = [max(0, each.timeout_ms - passed_ms) for each in requests]
            timed = [
                each._replace(timeout_ms=left) for each, left in zip(requests, left_ms, strict=True)
            ]
            try:
                bodies = [each.to_bytes() for each in timed]
                answers = self._channel.ask(bodies, sum(left_ms) / 1000 + _GRACE_S, is_last)
            except SilentError:
                raise
            except LostError as error:
                self._channel.close()
                if attempts is None:
                    until_s = time.monotonic() + _RECONNECT_S
                    attempts = self._attempts(max(self._start_until, until_s))
                elif not attempts.pause():
                    raise
                self._dial_again(error, attempts)
            else:
                if not all(answers):
                    raise InitError(f"init: the store at {self._name} sent an empty answer")
                return answers

    def _dial_again(self, lost: LostError, attempts: _Attempts) -> None:
        try:
            channel = self._dial(attempts)
        except InitError as error:
            raise InitError(f"{lost}; {error.reason}") from None
        if channel.instance != self._channel.instance:
            channel.close()
            raise InitError(f"{lost}; another store, which has no values of this job, is there now")
        self._channel = channel
        if self.is_closed:  # another thread has closed it meanwhile
            channel.close()

    def _dial(self, attempts: _Attempts) -> StoreChannel:
        """Dial until a connection is made, or until too many failures are certain."""
        certain = 0
        while True:
            try:
                return StoreChannel(
                    self.address,
                    self._secret,
                    timeout_s=attempts.timeout_s,
                    connect_s=attempts.connect_s,
                )
            except InitError as error:
                certain = 0 if isinstance(error, LostError) else certain + 1
                if certain == _MOST_CERTAIN or not attempts.pause():
                    raise

    def _attempts(self, until: float) -> _Attempts:
        return _Attempts(until, 0.5 + self._id[0] / 512, self._has_ended)


def _set(key: str, value: bytes) -> _Asked:
    return wire.Operation.SET, key, value, 0.0


def _get(key: str, timeout_s: float) -> _Asked:
    return wire.Operation.GET, key, b"", timeout_s


def _value_in(answer: bytes) -> bytes | None:
    """The value in the answer to a ``get``; None if there was none in time."""
    return answer[1:] if answer[0] == wire.Status.DONE else None


def _found(key: str, answer: bytes, timeout_s: float) -> bytes:
    value = _value_in(answer)
    if value is None:
        raise TimeoutError(f"store: {key!r} was not set within {timeout_s:g} s")
    return value


class _Attempts:
    """When a store is dialled, and until when: with growing pauses, which differ among clients."""

    def __init__(self, until: float, pause_factor: float, has_ended: threading.Event) -> None:
        self._until = until
        self._pause_factor = pause_factor
        self._has_ended = has_ended
        self._pause_s = _PAUSE_S
        self.connect_s = _CONNECT_S

    @property
    def timeout_s(self) -> float:
        """For one connection, until both sides have proved themselves."""
        return min(max(self._until - time.monotonic(), 0.001), _HANDSHAKE_S)

    def pause(self) -> bool:
        """Wait until it is time for the next attempt; False if there is none."""
        pause_s = self._pause_s * self._pause_factor
        self._pause_s = min(2 * self._pause_s, _MOST_PAUSE_S)
        self.connect_s = min(1.5 * self.connect_s, _MOST_CONNECT_S)
        if time.monotonic() + pause_s >= self._until:
            return False
        return not self._has_ended.wait(pause_s)
