"""The probes of ``memory.py``; reads Linux's /proc; runs in the workers."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import torch
from contestants import Horovod

__all__ = ["MemoryProbe", "memory_bytes"]

_TASKS = Path("/proc/self/task")
_SETTLING_S = 0.1  # the engine wakes once more, some milliseconds after the last collective


class MemoryProbe:
    """A rank that first has only torch and its tensors, then joins Horovod and reduces them."""

    def __init__(self, _contestant: None) -> None:
        torch.set_num_threads(1)
        self._tensors: list[torch.Tensor] = []
        self._horovod: Horovod | None = None

    def allocate(self, *, tensor_count: int, tensor_bytes: int) -> None:
        """Make the tensors and touch every page of them."""
        count = tensor_bytes // 4
        self._tensors = [torch.full((count,), 1.0) for _ in range(tensor_count)]

    def join_and_reduce(self, *, iterations: int) -> None:
        """Import Horovod, join, and reduce the tensors one by one and all together."""
        self._horovod = Horovod()
        together = self._horovod.many(self._tensors)
        one_by_one = [self._horovod.blocking(tensor) for tensor in self._tensors]
        for _ in range(iterations):
            for reduce_one in one_by_one:
                reduce_one()
            together()

    def pss_bytes(self) -> int:
        """Memory of this process; a shared page counts in equal parts for each process."""
        return memory_bytes("smaps_rollup", "Pss")

    def idle(self, *, seconds: float) -> dict[str, float]:
        """Compute without submitting; the activity of all other threads in that time."""
        self._compute(_SETTLING_S)
        before = _background_activity()
        self._compute(seconds)
        after = _background_activity()
        return {key: after[key] - before[key] for key in after}

    def _compute(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._tensors[0].mul_(1.0)


def memory_bytes(file: str, field: str) -> int:
    """A number of KiB in a file of /proc/self, in bytes."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self", file).read_text(), re.MULTILINE)
    if not found:
        raise RuntimeError(f"no {field} in /proc/self/{file}")
    return int(found[1]) * 1024


def _background_activity() -> dict[str, float]:
    """Context switches and microseconds on a core of all threads but the main one."""
    switches, on_core_ns = 0, 0
    for task in _TASKS.iterdir():
        if task.name == str(os.getpid()):
            continue
        status = (task / "status").read_text()
        switches += sum(int(n) for n in re.findall(r"ctxt_switches:\s+(\d+)", status))
        on_core_ns += int((task / "schedstat").read_text().split()[0])
    return {"switches": switches, "on_core_us": on_core_ns / 1e3}
