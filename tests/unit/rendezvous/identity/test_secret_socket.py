"""Which processes get a job's secret over the launcher's socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from horovod.errors import InitError
from horovod.rendezvous.host.peer_socket import new_socket
from horovod.rendezvous.identity import secret_socket
from horovod.rendezvous.identity.secret_socket import SecretSocket, ask_for_secret

SECRET = b"s" * 32
PATIENCE_S = 500
ASK = """
import os, sys
sys.path[:] = eval(sys.argv[3])
from horovod.rendezvous.identity import secret_socket
name = secret_socket._name(int(sys.argv[1]))
os.setuid(int(sys.argv[2]))
asking = secret_socket.new_socket()
asking.connect(name)
print(asking.recv(64))
"""


def a_port() -> int:
    """A number above all ports, that no other process uses: the socket's name has it."""
    return 65_536 + int.from_bytes(os.urandom(4), "big")


def test_the_same_user_gets_the_secret_until_it_is_closed() -> None:
    port = a_port()
    served = SecretSocket(port, SECRET)
    assert [ask_for_secret(port, PATIENCE_S) for _ in range(3)] == [SECRET] * 3
    served.close()
    assert ask_for_secret(port, PATIENCE_S) == b""
    SecretSocket(port, SECRET).close()


def test_two_processes_cannot_serve_one_port() -> None:
    port = a_port()
    served = SecretSocket(port, SECRET)
    with pytest.raises(OSError, match="in use"):
        SecretSocket(port, SECRET)
    served.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_gets_nothing() -> None:
    port = a_port()
    served = SecretSocket(port, SECRET)
    words = [sys.executable, "-c", ASK, str(port), "12345", repr(sys.path)]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=500)
    served.close()
    assert answer.stdout == "b''\n", answer.stderr


def test_a_launcher_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    port = a_port()
    served = SecretSocket(port, SECRET)
    monkeypatch.setattr(secret_socket, "_is_same_user", lambda connected: False)
    with pytest.raises(InitError, match="another user's process answers"):
        ask_for_secret(port, PATIENCE_S)
    served.close()


def test_the_wait_for_a_silent_launcher_ends() -> None:
    port = a_port()
    with new_socket() as silent:
        silent.bind(secret_socket._name(port))
        silent.listen()
        with pytest.raises(InitError, match="has not sent"):
            ask_for_secret(port, 0.05)


def test_a_process_waits_for_a_place_in_the_backlog() -> None:
    port, found = a_port(), list[bytes]()
    with new_socket() as slow, new_socket() as before:
        slow.bind(secret_socket._name(port))
        slow.listen(0)
        before.connect(secret_socket._name(port))  # the backlog is full now
        asking = threading.Thread(target=lambda: found.append(ask_for_secret(port, PATIENCE_S)))
        asking.start()
        for _ in range(2):
            with slow.accept()[0] as connected:
                connected.send(SECRET)
        asking.join()
    assert found == [SECRET]


def test_the_pid_of_an_ended_process_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        secret_socket, "_namespaces", lambda pid: []
    )  # as another's with the number
    port = a_port()
    with new_socket() as listener:
        listener.bind(secret_socket._name(port))
        listener.listen()
        script = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
            "s.connect('\\0' + sys.argv[1])"
        )
        words = [sys.executable, "-c", script, secret_socket._name(port)[1:]]
        subprocess.run(words, check=True, timeout=500)
        with listener.accept()[0] as connected:
            assert not secret_socket._is_same_user(connected)


def test_a_process_of_another_container_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        assert secret_socket._is_same_user(left)
        monkeypatch.setattr(secret_socket, "_namespaces", lambda pid: [str(pid)])
        assert not secret_socket._is_same_user(left)
