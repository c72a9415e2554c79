"""Another user of the machine that connects to every new port, as often as possible.

    flood.py SECONDS CONNECTIONS hold|churn

Holds up to CONNECTIONS silent connections to ports where root has begun to listen, and
replaces those that end; with ``churn`` it also replaces some that do not end. It reports when
it has made CONNECTIONS, ends after SECONDS and prints how many it has made in all.
Root starts it; it first becomes the user nobody.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import sys
import time
from collections import deque

_NOBODY = 65534
_LISTENS, _ROOT = "0A", "0"
_LOOK_S, _LOOK_AGAIN_S = 0.005, 0.5  # listing all connections takes long


def listening() -> set[int]:
    """The ports of 127.0.0.1 where a process of root listens."""
    with open("/proc/net/tcp", "rb") as file:
        rows = [line.decode().split() for line in file.readlines()[1:]]
    return {
        int(row[1].partition(":")[2], 16)
        for row in rows
        if row[3] == _LISTENS and row[7] == _ROOT and row[1].startswith("0100007F")
    }


def flood(until: float, most: int, *, churns: bool) -> int:
    """The number of connections made."""
    before, ports = listening(), set[int]()
    held: deque[socket.socket] = deque()
    count, next_look, has_told = 0, 0.0, False
    while (now := time.monotonic()) < until:
        if now >= next_look:
            ports = listening() - before
            next_look = now + (_LOOK_AGAIN_S if ports else 0.0)
        if not ports:
            time.sleep(_LOOK_S)
        for port in ports if len(held) < most else ():
            made = socket.socket()
            made.setblocking(False)
            made.connect_ex(("127.0.0.1", port))
            held.append(made)
            count += 1
        if len(held) >= most:
            if not has_told:
                print("held", flush=True)
            has_told = True
            renew(held, churns=churns)
    return count


def renew(held: deque[socket.socket], *, churns: bool) -> None:
    """Close connections that the peer has ended; with ``churns`` an eighth of the rest too."""
    poller = select.poll()
    for each in held:
        poller.register(each, select.POLLRDHUP)
    ended = {
        fd
        for fd, events in poller.poll(0 if churns else 10)
        if events & (select.POLLRDHUP | select.POLLHUP)
    }
    for _ in range(len(held)):
        each = held.popleft()
        if each.fileno() in ended:
            each.close()
        else:
            held.append(each)
    for _ in range(len(held) // 8 if churns else 0):
        held.popleft().close()


def main() -> None:
    seconds, most = float(sys.argv[1]), int(sys.argv[2])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * most + 64), hard))
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)
    print("ready", flush=True)
    with contextlib.suppress(BrokenPipeError):
        churns = sys.argv[3] == "churn"
        print(flood(time.monotonic() + seconds, most, churns=churns), flush=True)


if __name__ == "__main__":
    main()
