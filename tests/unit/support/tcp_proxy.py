"""A TCP proxy that cuts or alters what passes between a client and its server."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable

from loopback import new_loopback

TO_SERVER, TO_CLIENT = 0, 1
# Direction, bytes that have passed in it, the next bytes -> bytes to pass on; None resets.
Meddler = Callable[[int, int, bytes], "bytes | None"]


def unchanged(direction: int, passed: int, data: bytes) -> bytes:
    return data


def cut_after(direction: int, count: int) -> Meddler:
    """Pass ``count`` bytes in this direction, then reset both connections."""

    def meddle(where: int, passed: int, data: bytes) -> bytes | None:
        if where != direction or passed + len(data) <= count:
            return data
        return data[: count - passed] or None

    return meddle


def flip(direction: int, position: int, bit: int) -> Meddler:
    """Change one bit of this byte."""

    def meddle(where: int, passed: int, data: bytes) -> bytes:
        if where != direction or not passed <= position < passed + len(data):
            return data
        changed = bytearray(data)
        changed[position - passed] ^= 1 << bit
        return bytes(changed)

    return meddle


class Proxy:
    """Listens at ``address``. The n-th connection gets the n-th meddler, later ones none."""

    def __init__(self, server: tuple[str, int], meddlers: list[Meddler]) -> None:
        self.count = 0
        self._server = server
        self._meddlers = meddlers
        self._listener = socket.create_server((new_loopback(), 0), backlog=64)
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
        """One connection at a time, as a client makes them."""
        while self._ended not in select.select([self._listener, self._ended], [], [])[0]:
            with (
                self._listener.accept()[0] as client,
                socket.create_connection(self._server) as server,
            ):
                meddlers = self._meddlers[self.count : self.count + 1] or [unchanged]
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
    """Reset connections."""
    for each in connected:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        each.close()
