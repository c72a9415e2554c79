"""Somebody on the way between a client and its server, who cuts or changes what passes."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable

TO_SERVER, TO_CLIENT = 0, 1
# Direction, how many bytes have passed in it, what is to pass; what passes then, None: a reset.
Meddler = Callable[[int, int, bytes], "bytes | None"]


def unharmed(direction: int, passed: int, data: bytes) -> bytes:
    return data


def cut_after(direction: int, count: int) -> Meddler:
    """Lets ``count`` bytes pass in this direction, then resets both connections."""

    def meddle(where: int, passed: int, data: bytes) -> bytes | None:
        if where != direction or passed + len(data) <= count:
            return data
        return data[: count - passed] or None

    return meddle


def flip(direction: int, position: int, bit: int) -> Meddler:
    """Changes one bit of this byte."""

    def meddle(where: int, passed: int, data: bytes) -> bytes:
        if where != direction or not passed <= position < passed + len(data):
            return data
        changed = bytearray(data)
        changed[position - passed] ^= 1 << bit
        return bytes(changed)

    return meddle


class Proxy:
    """Listens at ``address``; the n-th connection gets the n-th meddler, later ones none."""

    def __init__(self, server: tuple[str, int], meddlers: list[Meddler]) -> None:
        self.count = 0
        self._server = server
        self._meddlers = meddlers
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._ended, self._end = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()
        self._thread.join(30)
        self._listener.close()
        self._ended.close()

    def _serve(self) -> None:
        """One connection at a time, as a client has."""
        while self._ended not in select.select([self._listener, self._ended], [], [])[0]:
            with (
                self._listener.accept()[0] as client,
                socket.create_connection(self._server) as server,
            ):
                meddlers = self._meddlers[self.count : self.count + 1] or [unharmed]
                self.count += 1
                self._relay((client, server), meddlers[0])

    def _relay(self, ends: tuple[socket.socket, socket.socket], meddle: Meddler) -> None:
        passed = [0, 0]
        with contextlib.suppress(OSError):
            while True:
                ready = select.select([*ends, self._ended], [], [])[0]
                if self._ended in ready:
                    return None
                for direction in [d for d in (TO_SERVER, TO_CLIENT) if ends[d] in ready]:
                    data = ends[direction].recv(4096)
                    kept = meddle(direction, passed[direction], data) if data else None
                    if kept:
                        ends[1 - direction].sendall(kept)
                        passed[direction] += len(kept)
                    if kept is None or len(kept) < len(data):
                        return reset(*ends)


def reset(*connected: socket.socket) -> None:
    """End connections as if the other side had never known of them."""
    for each in connected:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.close()
