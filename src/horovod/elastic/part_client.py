"""A process that is about to join gets the state's parts from rank 0, on a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

from horovod.core.base import threads
from horovod.core.base.checked import BadMessageError
from horovod.core.base.on_error import on_error
from horovod.elastic.parts import (
    HANDSHAKE_S,
    NONE,
    PROTOCOL,
    SILENT_S,
    MisfitError,
    PartAnswer,
    PartRequest,
    PartServerAddresses,
    PartStream,
    StateParts,
    receive_exactly,
)
from horovod.errors import InitError
from horovod.rendezvous.base.deadlines import Deadline
from horovod.rendezvous.base.handshake import Dialer, ProtocolError
from horovod.rendezvous.base.tcp import tune

_log = logging.getLogger("horovod.elastic")

_TRIES = 3
_PAUSE_S = 1.0
_CONNECT_S = 5.0
_END_S = 1.0  # for a thread that is connecting
_MOST_TIMES = 3  # that a part arrives: it changes sooner than it travels
_FOLLOW_S = 300.0  # after the wait for all parts


class PartClient:
    """Receives ``parts`` and follows their changes, from construction until ``stop``.

    Parts are put into the state as they arrive, on the client's thread. A process that waits long
    for its place follows them for some minutes only.

    Attributes:
        numbers: the parts that have arrived.

    Args:
        find: where rank 0 listens; called on the thread, again after a lost connection. Raises
            ``InitError`` or ``TimeoutError`` if that is unknown.
    """

    def __init__(
        self, parts: StateParts, secret: bytes, find: Callable[[], PartServerAddresses]
    ) -> None:
        self._parts = parts
        self._secret = secret
        self._find = find
        self.numbers: set[int] = set()
        self._put_lock = threading.Lock()
        self._versions = [NONE] * len(parts)
        self._times: Counter[int] = Counter()
        self._has_news = threading.Event()  # it has all, or has given up
        self._misfit: MisfitError | None = None
        self._is_stopped = threading.Event()
        self._until = math.inf
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="horovod-parts", daemon=True)
        with contextlib.suppress(OSError):  # without a thread nothing arrives
            threads.start(self._thread)

    def wait(self, timeout_s: float) -> None:
        """Block until all parts are here, or it is clear that they will not be, or for so long.

        Raises:
            MisfitError: they do not fit here.
        """
        if self._thread.is_alive():
            self._has_news.wait(timeout_s)
        if self._misfit is not None:
            raise self._misfit

    def stop(self) -> None:
        """End the connection; no part is put any more afterwards."""
        with self._put_lock:
            self._is_stopped.set()
        if (connected := self._socket) is not None:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            self._try_to_follow()
        except MisfitError as error:
            self._misfit = error
        except Exception as error:  # such as no memory for a part
            _log.warning("%r; the rest of the state follows after joining", error)
        finally:
            self._has_news.set()

    def _try_to_follow(self) -> None:
        for number in range(_TRIES):
            if number and self._is_stopped.wait(_PAUSE_S):
                break
            try:
                addresses = self._find().addresses
            except (InitError, TimeoutError):
                break  # no rank serves parts
            try:
                self._follow(addresses)
            except (OSError, ProtocolError) as error:
                _log.debug("lost the connection for the state's parts: %s", error)
            except BadMessageError as error:
                _log.warning("%s; the rest of the state follows after joining", error.of("rank 0"))
                break
            if self._is_stopped.is_set() or time.monotonic() >= self._until:
                break

    def _follow(self, addresses: tuple[tuple[str, int], ...]) -> None:
        connected, stream = self._connect(addresses)
        with connected:
            self._socket = connected
            is_current = False
            while not self._is_stopped.is_set() and time.monotonic() < self._until:
                stream.send(PartRequest(tuple(self._versions), is_current).to_bytes())
                answer = PartAnswer.from_bytes(stream.receive())
                if answer.parts != len(self._parts):
                    raise _misfit(f"{answer.parts} parts", f"{len(self._parts)}")
                is_current = answer.is_current
                if answer.part != NONE:
                    self._take(answer, stream)
                elif is_current:
                    self._end_wait()

    def _connect(self, addresses: tuple[tuple[str, int], ...]) -> tuple[socket.socket, PartStream]:
        """A connection at the first address where rank 0 proves that it is a rank of this job."""
        last: Exception = OSError("no address")
        for address in addresses:
            try:
                connected = socket.create_connection(address, _CONNECT_S)
                with on_error(connected.close):
                    return connected, self._prove(connected)
            except (OSError, ProtocolError) as error:
                last = error
        raise last

    def _prove(self, connected: socket.socket) -> PartStream:
        side, deadline = Dialer(PROTOCOL, self._secret), Deadline(HANDSHAKE_S)
        challenge = receive_exactly(connected, PROTOCOL.challenge_bytes, deadline)
        connected.sendall(side.hello(challenge))
        side.read_reply(receive_exactly(connected, PROTOCOL.reply_bytes, deadline))
        tune(connected, SILENT_S)
        return PartStream(connected, side)

    def _take(self, answer: PartAnswer, stream: PartStream) -> None:
        number, header, size_bytes = answer.part, answer.header, answer.size_bytes
        if number >= len(self._parts):
            raise _unfit("part", number, f"less than {len(self._parts)}")
        try:
            expected = self._parts.expected_bytes(number, header)
        except ValueError as error:
            raise _misfit(f"part {number} of {list(header)}", str(error)) from None
        if size_bytes != expected:
            raise _unfit("size_bytes", size_bytes, str(expected))
        data = bytearray()
        while len(data) < size_bytes:
            data += stream.receive()
        if len(data) > size_bytes:
            raise _unfit("data", f"{len(data)} bytes", str(size_bytes))
        with self._put_lock:
            if self._is_stopped.is_set():
                return
            self._parts.put(number, header, data)
            self.numbers.add(number)
        self._versions[number] = answer.version
        self._times[number] += 1
        if self._times[number] == _MOST_TIMES:
            self._end_wait()

    def _end_wait(self) -> None:
        if not self._has_news.is_set():
            self._until = time.monotonic() + _FOLLOW_S
            self._has_news.set()


def _misfit(found: str, expected: str) -> MisfitError:
    return MisfitError(
        f"elastic: the state of rank 0 has {found}, expected {expected} as in this process; make "
        "models and optimizers alike on all ranks before the elastic function begins"
    )


def _unfit(field: str, found: object, expected: str) -> BadMessageError:
    return BadMessageError(PartAnswer.message, field, str(found), expected)
