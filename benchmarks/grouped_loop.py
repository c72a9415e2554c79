"""The measured loop of ``grouped.py``; runs in the workers."""

from __future__ import annotations

from contestants import Horovod, Operation
from loop import Loop

__all__ = ["FORMS", "WHOLE", "GroupedLoop"]

WHOLE = "one tensor"
FORMS = ("grouped", "asynchronous", "batch of DistributedOptimizer")


class GroupedLoop(Loop):
    """In-place sums of the same bytes as one tensor and, in several forms, as many tensors."""

    def __init__(self, contestant: Horovod) -> None:
        super().__init__(contestant)
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
                tensor[:] = 0  # stays finite when it is summed many times
        contestant.barrier()

    def measure(self, *, iterations: int, form: str = WHOLE) -> float:
        """Seconds per iteration of this form on this rank; all ranks start together."""
        self._run = self._operations[form]
        return super().measure(iterations=iterations)

    def release(self) -> None:
        self._operations = {}
        super().release()
