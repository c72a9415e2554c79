"""The measured loop of ``collectives.py``; runs in the workers."""

from __future__ import annotations

import time
from typing import Any

from contestants import Contestant, Operation

__all__ = ["CollectiveLoop"]


class CollectiveLoop:
    """One blocking call of a collective on a float32 tensor, or sums of many tensors at once."""

    def __init__(self, contestant: Contestant) -> None:
        self._contestant = contestant
        self._operation: Operation = lambda: None

    def prepare_sum(self, *, element_count: int, tensor_count: int) -> list[float]:
        """Make tensors to sum in place and run once on ones; the first and the last result."""
        contestant = self._contestant
        tensors = [contestant.tensor(element_count) for _ in range(tensor_count)]
        operation = (
            contestant.blocking(tensors[0]) if tensor_count == 1 else contestant.many(tensors)
        )
        for tensor in tensors:
            tensor[:] = 1
        operation()
        sums = [float(tensors[0][0]), float(tensors[-1][-1])]
        for tensor in tensors:
            tensor[:] = 0  # stays finite however often it is summed
        self._start_with(operation)
        return sums

    def prepare_exchange(
        self, *, collective: str, element_count: int, is_output_new: bool
    ) -> list[float]:
        """Make a tensor, the rank's number plus one in every element, and run ``collective`` once;
        the first and the last element of the result."""
        tensor = self._contestant.tensor(element_count)
        tensor[:] = self._contestant.rank + 1
        operation = self._contestant.exchange(collective, tensor, is_output_new=is_output_new)
        result = operation()
        self._start_with(operation)
        return [float(result[0]), float(result[-1])]

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
        self._operation = lambda: None

    def _start_with(self, operation: Any) -> None:
        self._operation = operation  # holds its tensors
        self._contestant.barrier()
