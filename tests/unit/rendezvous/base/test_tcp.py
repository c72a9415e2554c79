"""Options of sockets between hosts."""

from __future__ import annotations

import socket
import sys
from contextlib import closing

import pytest

from horovod.rendezvous.base.interfaces import Route
from horovod.rendezvous.base.tcp import dialing_socket, listening_socket

TCP_RTO_MAX_MS = 44


def longest_pause_ms(made: socket.socket) -> int:
    return made.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)


@pytest.fixture
def default_ms() -> int:
    with socket.socket() as plain:
        try:
            return longest_pause_ms(plain)
        except OSError:
            pytest.skip("this system has no limit for TCP's pauses (Linux 6.15)")


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_packets_that_are_lost_are_soon_sent_again(default_ms: int) -> None:
    with closing(listening_socket(socket.AF_INET, ("127.0.0.1", 0))) as listener:
        listener.setblocking(True)
        with closing(dialing_socket(Route("127.0.0.1", listener.getsockname()[1]))) as dialing:
            dialing.connect_ex(listener.getsockname())
            accepted, _ = listener.accept()
            with accepted:
                assert longest_pause_ms(dialing) == longest_pause_ms(accepted) == 2000
    assert default_ms > 2000
