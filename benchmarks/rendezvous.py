"""The rendezvous of 1,000 ranks on this machine: time, memory, and what the store carries.

Ranks are threads of a few processes, without engines and frameworks; each group of ranks stands for
a host. They do what ``hvd.init()`` does until all are connected: they meet in the store, share
memory inside each host, and link each pair of hosts over loopback. In a cluster each rank has a
core of its own; here all share those of this machine, so the time is the work of all ranks.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit" / "support"))

from command_line import make_parser
from loopback import isolate_links, new_loopback
from report import OURS, Bar, Table, format_bytes, format_count, format_time, print_report
from worlds import SECRET, join_hosts, outcomes

from horovod.rendezvous import allgather
from horovod.rendezvous.base.descriptors import raise_limit, soft_limit
from horovod.rendezvous.base.membership import Mesh
from horovod.rendezvous.host import root
from horovod.rendezvous.store import client
from horovod.rendezvous.store.client import StoreClient
from horovod.rendezvous.store.server import StoreServer

_TIMEOUT_S = 500.0
_STACK_BYTES = 1 << 20
_ADDRESSES = 1  # of each rank
_TIME, _MEMORY = "until all are connected", "memory of all processes"
_WORK = "processor time of all ranks and the store"  # what a busy machine does not change much
_BARS = (Bar(_TIME, None, 60), Bar(_MEMORY, None, 4 << 30))


@dataclass
class _Counts:
    """What ranks have made, asked the store for, and got from it."""

    link_ends: int = 0
    requests: int = 0
    store_bytes: int = 0


class _CountedStore(StoreClient):
    """A client that counts."""

    counts = _Counts()
    _counting = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        super().set(key, value)
        self._note(value)

    def get(self, key: str, timeout_s: float) -> bytes:
        value = b""
        try:
            value = super().get(key, timeout_s)
        finally:
            self._note(value)
        return value

    def set_and_get(self, key: str, value: bytes, wanted: str, timeout_s: float) -> bytes:
        found = b""
        try:
            found = super().set_and_get(key, value, wanted, timeout_s)
        finally:
            self._note(value)
            self._note(found)
        return found

    def _note(self, value: bytes) -> None:
        with self._counting:
            self.counts.requests += 1
            self.counts.store_bytes += len(value)


def main() -> int:
    args = _parse_arguments()
    layout = [
        list(range(first, first + args.ranks_per_host))
        for first in range(0, args.hosts * args.ranks_per_host, args.ranks_per_host)
    ]
    # A slow machine has as much time as it needs, so that no connection is dropped.
    allgather._GRACE_S = client._GRACE_S = client._HANDSHAKE_S = client._CONNECT_S = _TIMEOUT_S
    root._HELLO_TIMEOUT_S = _TIMEOUT_S
    seconds, memory_bytes, counts = _run(layout, _process_count(args.hosts, args.ranks_per_host))
    ranks = args.hosts * args.ranks_per_host
    title = f"rendezvous of {ranks} ranks on {args.hosts} hosts"
    time_table = Table(title, [OURS], format_time, _BARS[:1])
    time_table.rows = {_TIME: {OURS: [seconds]}, _WORK: {OURS: [sum(os.times()[:4])]}}
    memory = Table(
        "memory", [OURS], format_bytes, _BARS[1:], rows={_MEMORY: {OURS: [memory_bytes]}}
    )
    counted = Table("counted", [OURS], format_count)
    counted.rows = {name: {OURS: [count]} for name, count in asdict(counts).items()}
    return print_report([time_table, memory, counted], args.json)


def _run(layout: Sequence[Sequence[int]], processes: int) -> tuple[float, int, _Counts]:
    """Seconds until the last rank was connected, memory then, and the sums of all counts."""
    fork = get_context("fork")
    server = StoreServer(
        SECRET, addresses=[(new_loopback(), 0)], io_timeout_s=_TIMEOUT_S, max_unauthenticated=10_000
    )
    pipes, children = [], []
    for number in range(processes):
        ours, theirs = fork.Pipe()
        ranks = [rank for host in layout[number::processes] for rank in host]
        child = fork.Process(
            target=_serve, args=(theirs, ranks, layout, server.address), daemon=True
        )
        child.start()
        theirs.close()  # so that the end of the child ends our wait
        pipes.append(ours)
        children.append(child)
    with server:
        begin_s = time.monotonic()
        counts = [_received(pipe) for pipe in pipes]
        seconds = time.monotonic() - begin_s
        memory_bytes = sum(
            _memory_of(pid) for pid in (os.getpid(), *(c.pid or 0 for c in children))
        )
        for pipe in pipes:
            pipe.send("end")
        for child in children:
            child.join(_TIMEOUT_S)
    if None in counts:
        raise RuntimeError("ranks could not be connected; their errors are above")
    total = _Counts(
        *(sum(getattr(each, name) for each in counts) for name in _Counts.__dataclass_fields__)
    )
    return seconds, memory_bytes, total


def _serve(
    pipe: Connection, ranks: Sequence[int], layout: Sequence[Sequence[int]], store: tuple[str, int]
) -> None:
    """The ranks of one process, which stay connected until the benchmark has looked."""
    isolate_links(setattr, addresses=_ADDRESSES)
    gc.disable()  # it would walk through the objects of all ranks again and again
    threading.stack_size(_STACK_BYTES)
    with ExitStack() as stores:

        def join(index: int) -> Mesh:
            mine = _CountedStore(store, SECRET, timeout_s=_TIMEOUT_S)
            stores.callback(mine.close)
            return join_hosts(ranks[index], layout, mine, timeout_s=_TIMEOUT_S)

        found = outcomes(len(ranks), join)
        made = [mesh for mesh in found if isinstance(mesh, Mesh)]
        for error in set(map(str, (each for each in found if not isinstance(each, Mesh)))):
            sys.stderr.write(f"{error}\n")
        counts = _CountedStore.counts
        counts.link_ends = sum(
            len(mesh.news) + len(mesh.links.control) + len(mesh.links.data) for mesh in made
        )
        pipe.send(counts if len(made) == len(ranks) else None)
        pipe.poll(_TIMEOUT_S)
    os._exit(0)


def _received(pipe: Connection) -> _Counts | None:
    if not pipe.poll(2 * _TIMEOUT_S):
        raise RuntimeError(f"ranks were not connected within {2 * _TIMEOUT_S:g} s")
    found: _Counts | None = pipe.recv()
    return found


def _process_count(hosts: int, ranks_per_host: int) -> int:
    """So many that each may have twice the descriptors of its ranks, some of which dial again."""
    raise_limit()
    to_others = hosts * (hosts - 1) * (ranks_per_host + 1)
    inside = hosts * ranks_per_host * (2 * ranks_per_host + 16)
    return max(os.cpu_count() or 1, math.ceil((to_others + inside) / (0.4 * soft_limit())))


def _memory_of(pid: int) -> int:
    """Its own memory, and its part of what it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--hosts", type=int, default=125)
    parser.add_argument("--ranks-per-host", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
