"""The time to send Python objects: a small dictionary, and an array of 100 MB.

    horovodrun -np 2 python benchmarks/objects.py

Prints one line of JSON: medians of the slowest rank, in microseconds and milliseconds.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np

import horovod.numpy as hvd

_SMALL = {"epoch": 3, "batch": 17, "loss": 0.25, "name": "digits"}
_LARGE_BYTES = 100_000_000


def median_s(action: Callable[[], object], rounds: int) -> float:
    """The median time of ``action`` on the slowest rank; ranks begin each round together."""
    times = []
    for number in range(rounds):
        hvd.barrier()
        begun = time.perf_counter()
        action()
        taken = np.array([time.perf_counter() - begun])
        slowest = hvd.allreduce(taken, op=hvd.Max, name="slowest")
        if number > rounds // 10:
            times.append(float(slowest[0]))
    return statistics.median(times)


def main() -> None:
    """Run all cases."""
    hvd.init()
    large = np.ones(_LARGE_BYTES, np.uint8) if hvd.rank() == 0 else None
    result = {
        "ranks": hvd.size(),
        "broadcast_small_us": median_s(lambda: hvd.broadcast_object(_SMALL), 2000) * 1e6,
        "allgather_small_us": median_s(lambda: hvd.allgather_object(_SMALL), 2000) * 1e6,
        "broadcast_100mb_ms": median_s(lambda: hvd.broadcast_object(large), 12) * 1e3,
    }
    if hvd.rank() == 0:
        print(json.dumps({key: round(value, 1) for key, value in result.items()}))


if __name__ == "__main__":
    main()
