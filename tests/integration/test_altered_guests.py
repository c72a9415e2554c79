"""Somebody on the path between a launcher and its guests: an error, and nothing of it is run."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from guest_jobs import HERE, call

from horovod.launch.guest import Guest

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("nothing_is_left")]

MARK = b"the mark of this test"
TO_GUEST, TO_LAUNCHER = 0, 1


@dataclass
class Proxy:
    """Passes on one connection, and flips a bit of one byte of one direction.

    ``where`` is the byte's position in the stream, or what it is found in.
    """

    guest: tuple[str, int]
    direction: int
    where: int | bytes
    has_flipped: bool = False

    def __post_init__(self) -> None:
        self._listener = socket.create_server((HERE, 0))
        self.address = self._listener.getsockname()[:2]
        self._passed = [0, 0]

    def run(self) -> None:
        with self._listener:
            launcher, _ = self._listener.accept()
        with launcher, socket.create_connection(self.guest) as guest:
            self._pass_on(launcher, guest)

    def _pass_on(self, launcher: socket.socket, guest: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(launcher, selectors.EVENT_READ, (guest, TO_GUEST))
            selector.register(guest, selectors.EVENT_READ, (launcher, TO_LAUNCHER))
            while selector.get_map():
                for key, _ in selector.select():
                    target, direction = key.data
                    try:
                        data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                        target.sendall(self._changed(data, direction))
                    except ConnectionError:
                        return
                    if not data:
                        selector.unregister(key.fileobj)
                        target.shutdown(socket.SHUT_WR)

    def _changed(self, data: bytes, direction: int) -> bytes:
        begin = self._passed[direction]
        self._passed[direction] += len(data)
        if direction != self.direction or self.has_flipped:
            return data
        at = data.find(self.where) if isinstance(self.where, bytes) else self.where - begin
        if not 0 <= at < len(data):
            return data
        self.has_flipped = True
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@contextmanager
def proxied(direction: int, where: int | bytes) -> Iterator[tuple[Proxy, bytes]]:
    secret = os.urandom(32)
    with Guest(HERE, secret, launcher=HERE) as guest:
        proxy = Proxy(guest.address, direction, where)
        thread = threading.Thread(target=proxy.run)
        thread.start()
        yield proxy, secret
        guest.end()
        thread.join()


def marked(path: Path, mark: bytes) -> Any:
    def function() -> bytes:
        path.write_text("it has run")
        return mark

    return function


@pytest.mark.parametrize(
    ("direction", "where", "reason"),
    [
        # Greeting: nonce and proof. Records: their lengths and codes, the plan, the call.
        (TO_GUEST, 3, "its guest was ended"),
        (TO_GUEST, 40, "its guest was ended"),
        (TO_GUEST, 64, "did not arrive as it was: record 1 "),
        (TO_GUEST, 70, "did not arrive as it was: record 1 "),
        (TO_GUEST, 200, "did not arrive as it was: record 1 "),
        (TO_GUEST, "mark", "did not arrive as it was: record 2 "),
        # Greeting: magic, nonce, proof. Records: the first one's length and code, the answer.
        (TO_LAUNCHER, 0, "something else listens there"),
        (TO_LAUNCHER, 15, "its guest was ended"),
        (TO_LAUNCHER, 60, "does not know the job's secret"),
        (TO_LAUNCHER, 75, "did not arrive as it was: record 1 "),
        (TO_LAUNCHER, 80, "did not arrive as it was: record 1 "),
        (TO_LAUNCHER, "mark", "did not arrive as it was: record "),
    ],
)
def test_a_flipped_bit(tmp_path: Path, direction: int, where: int | str, reason: str) -> None:
    witness = tmp_path / "witness"
    # Not the mark itself as a parameter: the plan has the environment, which has those of a test.
    with proxied(direction, where if isinstance(where, int) else MARK) as (proxy, secret):
        # Before the plan has come the guest knows no other name than the machine's.
        host = rf"(node/a|{os.uname().nodename})"
        with pytest.raises(RuntimeError, match=rf"{host}(.|\n)*{reason}"):
            call(marked(witness, MARK), {"node/a": proxy}, secret)
        assert proxy.has_flipped
    # Only if it was the answer that did not arrive.
    assert witness.exists() == (direction == TO_LAUNCHER and where == "mark")


def test_a_path_that_changes_nothing(tmp_path: Path) -> None:
    with proxied(TO_GUEST, b"this does not occur") as (proxy, secret):
        assert call(marked(tmp_path / "witness", MARK), {"node/a": proxy}, secret) == [MARK]
        assert not proxy.has_flipped
