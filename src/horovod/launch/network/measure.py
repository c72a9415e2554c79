"""The ranks of a network check: blocking allreduces with one other rank at a time.

Each pair makes a world of its own with ``init(comm=...)``, as training on these two hosts would, so
a pair that cannot connect does not disturb the others. The job's store separates the rounds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import numpy as np

import horovod.numpy as hvd
from horovod.core.compatibility import temporary_environment
from horovod.core.world import data_plane_name, engine
from horovod.errors import HorovodInternalError, InitError
from horovod.launch.network.links import Link, Pair
from horovod.rendezvous.bootstrap import identify, launcher_store

# Both ranks of a pair are ready, so they connect at once if they can.
_CONNECT_S = "10"
# Settings of the whole job.
_NOT_FOR_PAIRS = ("HOROVOD_METRICS_PORT", "HOROVOD_TIMELINE", "HOROVOD_DEBUG_COLLECTIVES")
# For the rounds of other pairs, including failures.
_ROUND_S = 180.0
_LATENCY_CALLS = (10, 500)
_LATENCY_S = 0.2
# With a longer latency, lost packets cost much.
_LONG_LATENCY_S = 0.005
_MORE_CONNECTIONS = (4, 16)
_FIRST_BYTES, _MOST_BYTES = 64 * 1024, 64 * 1024 * 1024
# In a call of this length, and of so many latencies, latency does not matter.
_LONG_CALL_S, _LONG_CALL_LATENCIES = 0.05, 10
_BANDWIDTH_S = 0.4
_BANDWIDTH_CALLS = (1, 9)


def measure_links(rounds: Sequence[Sequence[Pair]]) -> list[Link]:
    """The links that this rank has measured as the first of a pair; all ranks call this."""
    os.environ.setdefault("HOROVOD_START_TIMEOUT", _CONNECT_S)
    for name in _NOT_FOR_PAIRS:
        os.environ.pop(name, None)
    identity = identify(os.environ)
    store = launcher_store(os.environ, _ROUND_S)
    links = []
    for number, pairs in enumerate(rounds):
        store.set(f"network/{number}/{identity.rank}", b"here")
        for rank in range(identity.size):
            store.get(f"network/{number}/{rank}", _ROUND_S)
        for pair in pairs:
            if identity.rank in pair:
                links.append(_measured(pair))
    return [link for link in links if link.pair[0] == identity.rank]


def _measured(pair: Pair) -> Link:
    try:
        with _world(pair):
            transport, latency_s = _transport(), _agreed(_latency_s())
            before = _segments()
            bandwidth = _bandwidth(latency_s)
            sent, resent = (b - a for a, b in zip(before, _segments(), strict=True))
    except (InitError, HorovodInternalError) as error:
        return Link(pair, problem=str(error))
    is_long = transport == "TCP" and latency_s >= _LONG_LATENCY_S
    share = resent / max(1, sent + resent)
    more = _with_more(pair, latency_s) if is_long else {}
    return Link(pair, transport, latency_s, bandwidth, resent_share=share, with_more=more)


def _with_more(pair: Pair, latency_s: float) -> dict[int, float]:
    """The bandwidth by number of connections. The link works also where this cannot be measured."""
    found = {}
    for count in _MORE_CONNECTIONS:
        connections = temporary_environment(HOROVOD_LINK_CONNECTIONS=str(count))
        with suppress(InitError, HorovodInternalError), connections, _world(pair):
            found[count] = _bandwidth(latency_s)
    return found


@contextmanager
def _world(pair: Pair) -> Iterator[None]:
    try:
        hvd.init(comm=pair)
        yield
    finally:
        hvd.shutdown()


def _segments() -> tuple[int, int]:
    """TCP segments that this machine has sent for the first time, and again."""
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, counts = (line.split() for line in lines if line.startswith("Tcp:"))
    found = dict(zip(names, counts, strict=True))
    return int(found["OutSegs"]), int(found["RetransSegs"])


def _transport() -> str:
    name = data_plane_name()
    if name != "native":
        return name
    # Not by names: two names may be one machine, and two containers of a machine two hosts.
    leaders = hvd.allreduce(np.array([int(engine().leads_host)]), op=hvd.Sum, name="network.hosts")
    return "TCP" if leaders[0] == 2 else "shared memory"


def _latency_s() -> float:
    """The time of one blocking allreduce of 4 bytes."""
    number = np.zeros(1, np.float32)

    def call() -> None:
        hvd.allreduce_(number, op=hvd.Sum, name="network.latency")

    for _ in range(5):  # the first calls open connections and negotiate names
        call()
    count = _calls(_agreed(_duration_s(call)), _LATENCY_S, _LATENCY_CALLS)
    return median(_duration_s(call) for _ in range(count))


def _bandwidth(latency_s: float) -> float:
    """The bytes per second that each rank sends, and receives at the same time."""
    size_bytes = _FIRST_BYTES
    long_s = max(_LONG_CALL_S, _LONG_CALL_LATENCIES * latency_s)
    while True:
        data = np.zeros(size_bytes // 4, np.float32)

        def call(data: np.ndarray = data) -> None:
            hvd.allreduce_(data, op=hvd.Sum, name=f"network.{data.nbytes}")

        call()
        duration_s = _agreed(_duration_s(call))
        if duration_s >= long_s or size_bytes >= _MOST_BYTES:
            break
        size_bytes *= 4
    count = _calls(duration_s, _BANDWIDTH_S, _BANDWIDTH_CALLS)
    return size_bytes / _agreed(median(_duration_s(call) for _ in range(count)))


def _duration_s(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _agreed(duration_s: float) -> float:
    """The longer duration of both ranks, so that they decide alike."""
    return float(hvd.allreduce(np.array([duration_s]), op=hvd.Max, name="network.agreed")[0])


def _calls(duration_s: float, budget_s: float, limits: tuple[int, int]) -> int:
    return max(limits[0], min(limits[1], int(budget_s / duration_s)))
