"""The measured loop of ``collectives.py``; runs in the workers."""

from __future__ import annotations

from contestants import Operation
from loop import Loop

__all__ = ["CollectiveLoop"]


class CollectiveLoop(Loop):
    """One blocking call of a collective on a float32 tensor, or sums of many tensors at once."""

    def prepare_sum(self, *, element_count: int, tensor_count: int) -> list[float]:
        """Make tensors to sum in place and sum ones once; the first and the last result."""
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
            tensor[:] = 0  # stays finite when it is summed many times
        self._start_with(operation)
        return sums

    def prepare_exchange(
        self, *, collective: str, element_count: int, is_output_new: bool
    ) -> list[float]:
        """Run ``collective`` once on a tensor filled with rank + 1; the result's first and last
        element."""
        tensor = self._contestant.tensor(element_count)
        tensor[:] = self._contestant.rank + 1
        operation = self._contestant.exchange(collective, tensor, is_output_new=is_output_new)
        result = operation()
        self._start_with(operation)
        return [float(result[0]), float(result[-1])]

    def _start_with(self, operation: Operation) -> None:
        self._run = operation  # holds its tensors
        self._contestant.barrier()
