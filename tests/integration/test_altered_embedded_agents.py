"""An attacker on the path between a launcher and its agents: an error, and nothing of it is run."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from embedded_jobs import HERE, call

from horovod.launch.embedded.embedded_agent import EmbeddedAgent
from horovod.launch.wire.handshake import PROTOCOL

pytestmark = pytest.mark.usefixtures("nothing_is_left")

MARK = b"the mark of this test"
TO_AGENT, TO_LAUNCHER = 0, 1


class Proxy:
    """Passes on connections, and flips a bit of one byte of one direction of each.

    ``where`` is the byte's position in the stream, or what begins with it.
    """

    def __init__(self, agent: tuple[str, int], direction: int, where: int | bytes) -> None:
        self._agent = agent
        self._direction = direction
        self._where = where
        self.has_flipped = False
        self._listener = socket.create_server((HERE, 0))
        self.address = self._listener.getsockname()[:2]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                launcher, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(launcher,)))
                self._threads[-1].start()

    def _serve(self, launcher: socket.socket) -> None:
        with launcher, suppress(OSError), socket.create_connection(self._agent) as agent:
            self._pass_on(launcher, agent)

    def _pass_on(self, launcher: socket.socket, agent: socket.socket) -> None:
        targets = {launcher: (agent, TO_AGENT), agent: (launcher, TO_LAUNCHER)}
        passed = 0
        while agent in targets:  # its end is that of all
            for source in select.select(list(targets), [], [])[0]:
                target, direction = targets[source]
                data = source.recv(1 << 16)
                if direction == self._direction:
                    target.sendall(self._changed(data, passed))
                    passed += len(data)
                else:
                    target.sendall(data)
                if not data:
                    del targets[source]
                    target.shutdown(socket.SHUT_WR)

    def _changed(self, data: bytes, begin: int) -> bytes:
        at = data.find(self._where) if isinstance(self._where, bytes) else self._where - begin
        if not 0 <= at < len(data):
            return data
        self.has_flipped = True
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@contextmanager
def proxied(direction: int, where: int | bytes) -> Iterator[tuple[Proxy, EmbeddedAgent, bytes]]:
    secret = os.urandom(32)
    with EmbeddedAgent(HERE, secret, launcher=HERE) as agent:
        proxy = Proxy(agent.address, direction, where)
        try:
            yield proxy, agent, secret
        finally:
            agent.end()
            proxy.close()


def marked(path: Path, mark: bytes) -> Any:
    def function() -> bytes:
        path.write_text("it has run")
        return mark

    return function


@pytest.mark.parametrize(
    ("direction", "where", "reason"),
    [
        # Hello: magic, nonce and proof. Records: their lengths and codes, the plan, the call.
        (TO_AGENT, 3, "does not know the job's secret"),
        (TO_AGENT, 40, "does not know the job's secret"),
        (TO_AGENT, PROTOCOL.hello_bytes, "altered: record 1 "),
        (TO_AGENT, PROTOCOL.hello_bytes + 6, "altered: record 1 "),
        (TO_AGENT, 200, "altered: record 1 "),
        (TO_AGENT, "mark", "altered: record 2 "),
        # Challenge and reply. Records: the first one's length and code, the answer.
        (TO_LAUNCHER, 0, "something else listens there"),
        (TO_LAUNCHER, 15, "does not know the job's secret"),
        (TO_LAUNCHER, 60, "does not know the job's secret"),
        (TO_LAUNCHER, 75, "altered: record 1 "),
        (TO_LAUNCHER, 80, "altered: record 1 "),
        (TO_LAUNCHER, "mark", "altered: record "),
    ],
)
def test_a_flipped_bit(tmp_path: Path, direction: int, where: int | str, reason: str) -> None:
    witness = tmp_path / "witness"
    # Not the mark itself as a parameter: the plan has the environment, which has those of a test.
    with proxied(direction, where if isinstance(where, int) else MARK) as (proxy, agent, secret):
        # Before the plan has come the agent knows no other name than the machine's.
        host = rf"(node/a|{os.uname().nodename})"
        with pytest.raises(RuntimeError, match=rf"{host}(.|\n)*{reason}"):
            call(marked(witness, MARK), {"node/a": proxy}, secret)
        assert proxy.has_flipped
        if direction == TO_AGENT and "record" in reason:
            assert agent.wait() == 1  # an engine may start it again
    # Only if it was the answer that did not arrive.
    assert witness.exists() == (direction == TO_LAUNCHER and where == "mark")


def test_a_path_that_changes_nothing(tmp_path: Path) -> None:
    with proxied(TO_AGENT, b"this does not occur") as (proxy, agent, secret):
        assert call(marked(tmp_path / "witness", MARK), {"node/a": proxy}, secret) == [MARK]
        assert not proxy.has_flipped
        assert agent.wait() == 0
