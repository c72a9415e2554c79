"""A rank of ``lifecycle.py``; reads Linux's /proc; runs in the workers."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from memory_probe import memory_bytes

__all__ = ["LifecycleProbe"]

_WARM_UP = 5


class LifecycleProbe:
    """A process that joins and leaves worlds."""

    def __init__(self, _contestant: None) -> None:
        torch.set_num_threads(1)
        self._world: Any = None
        self._before: dict[str, int] = {}

    def prepare(self, *, library: str) -> None:
        """Import ``library``, join and leave a few worlds, and count resources."""
        self._world = {"horovod": _Horovod, "gloo": _Gloo}[library]()
        self.join_and_leave(world_count=_WARM_UP)
        self._before = _resources()

    def join_and_leave(self, *, world_count: int) -> list[tuple[float, float]]:
        """Seconds to join and to leave each world."""
        return [self._visit() for _ in range(world_count)]

    def added(self) -> dict[str, int]:
        """The resources added since ``prepare``."""
        return {key: count - self._before[key] for key, count in _resources().items()}

    def _visit(self) -> tuple[float, float]:
        start = time.perf_counter()
        self._world.join()
        joined = time.perf_counter()
        self._world.sum(torch.ones(1))
        summed = time.perf_counter()
        self._world.leave()
        return joined - start, time.perf_counter() - summed


class _Horovod:
    def __init__(self) -> None:
        import horovod.torch as hvd

        self.join, self.leave = hvd.init, hvd.shutdown
        self._hvd = hvd

    def sum(self, tensor: torch.Tensor) -> None:
        self._hvd.allreduce_(tensor, name="first", op=self._hvd.Sum)


class _Gloo:
    """The ranks of each world find each other through a separate file."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.sum, self.leave = dist.all_reduce, dist.destroy_process_group
        self._dist = dist
        self._world_count = 0

    def join(self) -> None:
        self._world_count += 1
        store = f"file://{os.environ['BENCH_STORE']}.{self._world_count}"
        rank, size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])
        self._dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)


def _resources() -> dict[str, int]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "resident memory": memory_bytes("status", "VmRSS"),
    }
