"""Who gets a job's secret over the launcher's socket, and who does not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from horovod.errors import InitError
from horovod.rendezvous import secret_socket
from horovod.rendezvous.peer_socket import new_socket
from horovod.rendezvous.secret_socket import SecretSocket, ask_for_secret

SECRET = b"s" * 32
ASK = """
import os, sys
sys.path[:] = eval(sys.argv[3])
from horovod.rendezvous import secret_socket
name = secret_socket._name(int(sys.argv[1]))
os.setuid(int(sys.argv[2]))
asking = secret_socket.new_socket()
asking.connect(name)
print(asking.recv(64))
"""


def a_port() -> int:
    """A number that no other test has; nothing listens at it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_the_same_user_gets_it_until_it_is_closed() -> None:
    port = a_port()
    served = SecretSocket(port, SECRET)
    assert [ask_for_secret(port) for _ in range(3)] == [SECRET] * 3
    served.close()
    assert ask_for_secret(port) == b""
    SecretSocket(port, SECRET).close()


def test_two_cannot_serve_one_port() -> None:
    port = a_port()
    served = SecretSocket(port, SECRET)
    with pytest.raises(OSError, match="in use"):
        SecretSocket(port, SECRET)
    served.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_another_user_gets_nothing() -> None:
    port = a_port()
    served = SecretSocket(port, SECRET)
    words = [sys.executable, "-c", ASK, str(port), "12345", repr(sys.path)]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=60)
    served.close()
    assert answer.stdout == "b''\n", answer.stderr


def test_another_user_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    port = a_port()
    served = SecretSocket(port, SECRET)
    monkeypatch.setattr(secret_socket, "_is_one_of_us", lambda connected: False)
    with pytest.raises(InitError, match="somebody else answers"):
        ask_for_secret(port)
    served.close()


def test_a_launcher_that_stands_still_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    port = a_port()
    monkeypatch.setattr(secret_socket, "_TIMEOUT_S", 0.05)
    with new_socket() as silent:
        silent.bind(secret_socket._name(port))
        silent.listen()
        with pytest.raises(InitError, match="has not told"):
            ask_for_secret(port)


def test_another_container_is_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        assert secret_socket._is_one_of_us(left)
        monkeypatch.setattr(secret_socket, "_namespaces", lambda pid: [str(pid)])
        assert not secret_socket._is_one_of_us(left)
