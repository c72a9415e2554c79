"""Up to 64 hosts, each a process: all connect to all at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The ranks are forks of one process after its imports, which would take most of the time.
SCRIPT = """
import os, sys, time
from horovod.rendezvous import allgather
from horovod.rendezvous.store import client
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer
from loopback import isolate_links, new_loopback
from worlds import SECRET, join_hosts

size = int(sys.argv[1])
layout = [[rank] for rank in range(size)]
isolate_links(setattr, addresses=4)
# A slow machine has as much time as it needs, so that no connection is dropped and reported.
allgather._GRACE_S = client._GRACE_S = client._HANDSHAKE_S = client._CONNECT_S = 500
server = StoreServer(SECRET, addresses=[(new_loopback(), 0)], io_timeout_s=500)
children = []

def rank_of(rank):
    store = StoreClient(server.address, SECRET, timeout_s=500)
    start = time.monotonic()
    mesh = join_hosts(rank, layout, store, timeout_s=500)
    seconds = time.monotonic() - start
    others = tuple(peer for peer in range(size) if peer != rank)
    assert tuple(host for host, _, _ in mesh.news) == others
    assert tuple(host for host, _, _, _ in mesh.links.data) == others
    assert len({os.fstat(fd).st_ino for _, fd, _ in mesh.news + mesh.links.control}) == (
        len(mesh.news) + len(mesh.links.control)
    )
    return seconds

for rank in range(size):
    child = os.fork()
    if child == 0:
        try:
            seconds = rank_of(rank)
            os.write(1, f"{rank} connected in {seconds:.2f} s\\n".encode())
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{rank}: {error!r}\\n".encode())
        finally:
            os._exit(1)
    children.append(child)
server.start()
codes = [os.waitpid(child, 0)[1] for child in children]
server.close()
sys.exit(any(codes))
"""


@pytest.mark.parametrize("size", [5, 64])
def test_all_connect_to_all(size: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(size)],
        capture_output=True,
        text=True,
        timeout=550,
        cwd=Path(__file__).parents[1] / "support",
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == size
    assert done.stderr == ""  # no rank took another one for an unauthenticated peer
