"""Connects without a proof to ports of a job, with no bytes or with garbage.

Reads lines ``ADDRESS PORT`` from standard input and answers each with a line when it is done. Some
connections stay silent and open until the end.
"""

from __future__ import annotations

import contextlib
import socket
import sys

_TIMEOUT_S = 1.0
_GARBAGE = [b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0" * 64, b"\xff" * 70_000, b"hvd"]


def main() -> None:
    silent = []
    for line in sys.stdin:
        address, port = line.split()
        for data in _GARBAGE:
            with contextlib.suppress(OSError):
                connection = socket.create_connection((address, int(port)), timeout=_TIMEOUT_S)
                connection.sendall(data)
                if data:
                    connection.close()
                else:
                    silent.append(connection)
        print("done", flush=True)


if __name__ == "__main__":
    main()
