"""Another user of the machine who connects wherever a new port is opened, as often as it can.

    flood.py SECONDS CONNECTIONS [PORT]

Holds up to CONNECTIONS that say nothing and opens others in place of those that end, at PORT or
wherever root has begun to listen since the start. Ends after SECONDS; prints how many it has made.
Root starts it; it becomes nobody first.
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
_LOOK_S, _LOOK_AGAIN_S = 0.005, 0.5  # a look at all connections takes its time


def listening() -> set[int]:
    """The ports at 127.0.0.1 where a process of root's listens."""
    with open("/proc/net/tcp", "rb") as file:
        rows = [line.decode().split() for line in file.readlines()[1:]]
    return {
        int(row[1].partition(":")[2], 16)
        for row in rows
        if row[3] == _LISTENS and row[7] == _ROOT and row[1].startswith("0100007F")
    }


def flood(until: float, most: int, given: set[int]) -> int:
    """How many connections it has made."""
    before, ports = listening(), given
    held: deque[socket.socket] = deque()
    count, next_look = 0, 0.0
    while (now := time.monotonic()) < until:
        if not given and now >= next_look:
            ports = listening() - before
            next_look = now + (_LOOK_AGAIN_S if ports else 0.0)
        if not ports:
            time.sleep(_LOOK_S)
        for port in ports:
            made = socket.socket()
            made.setblocking(False)
            made.connect_ex(("127.0.0.1", port))
            held.append(made)
            count += 1
        if len(held) >= most:
            renew(held)
    return count


def renew(held: deque[socket.socket]) -> None:
    """Let go what the other side has ended; if that is little, a part of the rest as well."""
    poller = select.poll()
    for each in held:
        poller.register(each, select.POLLIN | select.POLLRDHUP)
    ended = {fd for fd, events in poller.poll(0) if events & (select.POLLRDHUP | select.POLLHUP)}
    for _ in range(len(held)):
        each = held.popleft()
        if each.fileno() in ended:
            each.close()
        else:
            held.append(each)
    while len(ended) < len(held) // 8 and held:
        ended.add(-len(ended) - 1)
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
        given = {int(port) for port in sys.argv[3:]}
        print(flood(time.monotonic() + seconds, most, given), flush=True)


if __name__ == "__main__":
    main()
