"""A worker process: joins its peers, then runs the driver's calls; blocks in a read in between.

    python worker.py SOCKET CONTESTANT MODULE:CLASS

``worker_groups.WorkerGroup`` starts it through the contestant's own launcher.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import traceback
from multiprocessing.connection import Connection

from contestants import CONTESTANTS

BOUND = "BENCH_BOUND"  # an environment variable; if not empty, each rank has its own core
_RANK_NAMES = ("BENCH_RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")


def main() -> None:
    address, contestant, bench_path = sys.argv[1:]
    if os.environ.get(BOUND):
        _bind_to_core()
    module, name = bench_path.split(":")
    bench = getattr(importlib.import_module(module), name)(CONTESTANTS[contestant]())
    driver = _connect(address)
    while (request := driver.recv()) is not None:
        method, arguments = request
        try:
            driver.send((True, getattr(bench, method)(**arguments)))
        except Exception:
            driver.send((False, traceback.format_exc()))


def _bind_to_core() -> None:
    rank = next(int(os.environ[name]) for name in _RANK_NAMES if name in os.environ)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:  # else the launcher has bound it
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def _connect(address: str) -> Connection:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(address)
        return Connection(channel.detach())


if __name__ == "__main__":
    main()
