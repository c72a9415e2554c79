"""Ports for programs that cannot choose one by themselves."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A port below those that the system gives to other processes."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
