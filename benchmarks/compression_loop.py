"""The measured reduction of ``compression.py``: one step's gradients; runs in the workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["GRADIENT_SETS", "CompressionLoop"]

# Label -> shapes of one step's gradients.
GRADIENT_SETS: dict[str, list[tuple[int, ...]]] = {
    "8 tensors, 25 M parameters": [(2499, 2499), (2499,)] * 4,
    "602 tensors, 0.6 M parameters": [(44, 44), (44,)] * 301,
    "28 small convolution tensors": [
        (32, 3, 3, 3),
        (32,),
        *[(32, 32, 3, 3), (32,)] * 12,
        (10, 32),
        (10,),
    ],
}


class CompressionLoop:
    """Reduces the same gradients again and again, as ``DistributedOptimizer`` does at a step."""

    def __init__(self, contestant: Any) -> None:
        # Here and not above: the driver imports this module too, and needs no engine.
        from horovod.core.operations import Average, Intent
        from horovod.core.process_sets import global_process_set
        from horovod.torch import adapter
        from horovod.torch.compression import Compression

        self._contestant = contestant
        self._adapter = adapter
        self._compression = Compression
        self._average, self._intent = Average, Intent.WAIT
        self._everybody = global_process_set
        self._step: Callable[[], None] = lambda: None

    def prepare(self, *, gradient_set: str, compression: str) -> int:
        """Make gradients and reduce them twice; the bytes that a step hands to the engine."""
        generator = torch.Generator().manual_seed(self._contestant.rank)
        shapes = GRADIENT_SETS[gradient_set]
        originals = [torch.randn(shape, generator=generator) for shape in shapes]
        gradients = [original.clone() for original in originals]
        names = [f"gradient.{index}" for index in range(len(shapes))]
        if compression == "powersgd":
            self._step = self._exchanging(names, gradients)
        else:
            self._step = self._reducing(names, gradients, getattr(self._compression, compression))
        self._step()
        for gradient, original in zip(gradients, originals, strict=True):
            gradient.copy_(original)
        return self._bytes_of_a_step()

    def measure(self, *, iterations: int) -> float:
        """Seconds per step on this rank, all ranks having started together."""
        step = self._step
        self._contestant.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            step()
        return (time.perf_counter() - start) / iterations

    def release(self) -> None:
        """Give the gradients' memory back before the next ones are made."""
        self._step = lambda: None

    def _reducing(
        self, names: list[str], gradients: list[Tensor], compressor: Any
    ) -> Callable[[], None]:
        adapter = self._adapter

        def step() -> None:
            packed = [compressor.compress(gradient) for gradient in gradients]
            wires = [wire for wire, _ in packed]
            adapter.synchronize(
                adapter.allreduce_batch_async_(wires, names, self._average, intent=self._intent)
            )
            for gradient, (wire, context) in zip(gradients, packed, strict=True):
                if wire is not gradient:
                    gradient.copy_(compressor.decompress(wire, context))

        return step

    def _exchanging(self, names: list[str], gradients: list[Tensor]) -> Callable[[], None]:
        compressor = self._compression.powersgd(rank=4)
        exchange = compressor.make_exchange(self._average, 1.0, 1.0, self._everybody)
        return lambda: exchange.start(names, gradients).finish()

    def _bytes_of_a_step(self) -> int:
        """Runs a step while counting; what is handed over once travels once per ring or block."""
        adapter, count = self._adapter, 0
        submit = adapter.allreduce_batch_async_

        def counting(tensors: list[Tensor], *args: Any, **options: Any) -> int:
            nonlocal count
            count += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            return submit(tensors, *args, **options)

        adapter.allreduce_batch_async_ = counting
        try:
            self._step()
        finally:
            adapter.allreduce_batch_async_ = submit
        return count
