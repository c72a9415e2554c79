"""The measured loop of ``collectives.py``; runs in the workers."""

from __future__ import annotations

import time
from typing import Any

from contestants import Contestant, Operation

__all__ = ["CollectiveLoop"]


class CollectiveLoop:
    """In-place sums of float32 tensors, one blocking call or many tensors at once."""

    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self._tensors: list[Any] = []
        self._operation: Operation = lambda: None

    def prepare(self, *, element_count: int, tensor_count: int) -> list[float]:
        """Make the tensors and run once on ones; the first and last sum, to be checked."""
        tensors = [self._contestant.tensor(element_count) for _ in range(tensor_count)]
        if tensor_count == 1:
            self._operation = self._contestant.blocking(tensors[0])
        else:
            self._operation = self._contestant.many(tensors)
        for tensor in tensors:
            tensor[:] = 1
        self._operation()
        sums = [float(tensors[0][0]), float(tensors[-1][-1])]
        for tensor in tensors:
            tensor[:] = 0
        self._tensors = tensors
        self._contestant.barrier()
        return sums

    def measure(self, *, iterations: int) -> float:
        """Seconds per iteration on this rank, all ranks having started together."""
        operation = self._operation
        self._contestant.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            operation()
        seconds = time.perf_counter() - start
        self._contestant.barrier()  # a rank that left MPI for its pipe would leave peers waiting
        return seconds / iterations

    def release(self) -> None:
        """Give the tensors' memory back before other sizes are measured."""
        self._tensors = []
        self._operation = lambda: None
