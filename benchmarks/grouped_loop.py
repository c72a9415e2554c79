"""The measured loop of ``grouped.py``; runs in the workers."""

from __future__ import annotations

import time

from contestants import Horovod, Operation

__all__ = ["FORMS", "WHOLE", "GroupedLoop"]

WHOLE = "one tensor"
FORMS = ("grouped", "asynchronous", "batch of DistributedOptimizer")


class GroupedLoop:
    """In-place sums of the same bytes as one tensor and, in several forms, as many tensors."""

    def __init__(self, contestant: Horovod) -> None:
        self._contestant = contestant
        self._operations: dict[str, Operation] = {}

    def prepare(self, *, element_count: int, tensor_count: int) -> None:
        """Make the tensors, sum ones once in every form, and raise if a sum is wrong."""
        contestant = self._contestant
        whole = contestant.tensor(element_count * tensor_count)
        parts = [contestant.tensor(element_count) for _ in range(tensor_count)]
        makers = (contestant.grouped, contestant.many, contestant.batched)
        self._operations = {WHOLE: contestant.blocking(whole)}
        self._operations |= {form: make(parts) for form, make in zip(FORMS, makers, strict=True)}
        for form, operation in self._operations.items():
            tensors = [whole] if form == WHOLE else parts
            for tensor in tensors:
                tensor[:] = 1
            operation()
            if any(tensor[0] != contestant.size for tensor in tensors):
                raise RuntimeError(f"{form}: wrong sums")
            for tensor in tensors:
                tensor[:] = 0  # stays finite however often it is summed
        contestant.barrier()

    def measure(self, *, form: str, iterations: int) -> float:
        """Seconds per iteration on this rank, all ranks having started together."""
        operation = self._operations[form]
        self._contestant.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            operation()
        return (time.perf_counter() - start) / iterations

    def release(self) -> None:
        """Give the tensors' memory back before other sizes are measured."""
        self._operations = {}
