"""The ranks of ``horovodrun --calibrate``: blocking allreduces with one other rank."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import horovod.numpy as hvd
from horovod.core.world import has_spare_cores
from horovod.simulate.calibration import Measured, usual
from horovod.simulate.collective_time import CACHED_BYTES, UNCACHED_BYTES

MANY, EACH_BYTES = 512, 4096
_CALLS = {"small": 300, "cached": 50, "large": 7, "many": 15}


def measure() -> tuple[Measured, bool]:
    """What two ranks need for three kinds of work, and whether they have cores to spare.

    All ranks call it, and rank 0's result counts. Blocks for some seconds.
    """
    hvd.init()
    try:
        return _measured(), has_spare_cores()
    finally:
        hvd.shutdown()


def _measured() -> Measured:
    small = np.zeros(1, np.float32)
    cached = np.zeros(CACHED_BYTES // 4, np.float32)
    large = np.zeros(UNCACHED_BYTES // 4, np.float32)
    many = [np.zeros(EACH_BYTES // 4, np.float32) for _ in range(MANY)]

    def reduce_many() -> None:
        handles = [
            hvd.allreduce_async_(tensor, op=hvd.Sum, name=f"calibrate.{index}")
            for index, tensor in enumerate(many)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    single = {"small": small, "cached": cached, "large": large}
    small_s, cached_s, large_s = (_time_of_one(work, each) for work, each in single.items())
    many_s = _time_of("many", reduce_many)
    return Measured(small_s, cached_s, large_s, UNCACHED_BYTES, many_s, MANY, MANY * EACH_BYTES)


def _time_of_one(work: str, tensor: NDArray[np.float32]) -> float:
    return _time_of(work, lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=f"calibrate.{work}"))


def _time_of(work: str, call: Callable[[], object]) -> float:
    times = []
    for _ in range(3):  # the first calls make connections and negotiate names
        call()
    for _ in range(_CALLS[work]):
        begin_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin_s)
    return usual(times)
