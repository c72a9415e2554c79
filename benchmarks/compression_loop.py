"""Reduces the gradients of one step, for ``compression.py``; runs in the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from loop import Loop
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


class CompressionLoop(Loop):
    """Reduces the same gradients again and again, as ``DistributedOptimizer`` does in a step."""

    def __init__(self, contestant: Any) -> None:
        super().__init__(contestant)
        # Here, because the driver imports this module without the engine.
        from horovod.core.operations import Average, Intent
        from horovod.core.process_sets import global_process_set
        from horovod.torch import adapter
        from horovod.torch.compression import Compression

        self._adapter = adapter
        self._compression = Compression
        self._average, self._intent = Average, Intent.WAIT
        self._all_ranks = global_process_set

    def prepare(self, *, gradient_set: str, compression: str) -> int:
        """Make gradients and reduce them twice; the bytes that a step submits to the engine."""
        generator = torch.Generator().manual_seed(self._contestant.rank)
        shapes = GRADIENT_SETS[gradient_set]
        originals = [torch.randn(shape, generator=generator) for shape in shapes]
        gradients = [original.clone() for original in originals]
        names = [f"gradient.{index}" for index in range(len(shapes))]
        if compression in ("powersgd", "topk"):
            compressor = getattr(self._compression, compression)()
            self._run = self._exchanging(names, gradients, compressor)
        else:
            self._run = self._reducing(names, gradients, getattr(self._compression, compression))
        self._run()
        for gradient, original in zip(gradients, originals, strict=True):
            gradient.copy_(original)
        return self._bytes_of_a_step()

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

    def _exchanging(
        self, names: list[str], gradients: list[Tensor], compressor: Any
    ) -> Callable[[], None]:
        exchange = compressor.make_exchange(self._average, 1.0, 1.0, self._all_ranks)
        return lambda: exchange.start(names, gradients).finish()

    def _bytes_of_a_step(self) -> int:
        """Run a step and count the submitted bytes."""
        adapter, count = self._adapter, 0
        submits = {
            name: getattr(adapter, name)
            for name in ("allreduce_batch_async_", "grouped_allgather_async")
        }

        def counting(submit: Callable[..., int]) -> Callable[..., int]:
            def submit_counted(tensors: list[Tensor], *args: Any, **options: Any) -> int:
                nonlocal count
                count += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
                return submit(tensors, *args, **options)

            return submit_counted

        for name, submit in submits.items():
            setattr(adapter, name, counting(submit))
        try:
            self._run()
        finally:
            for name, submit in submits.items():
                setattr(adapter, name, submit)
        return count
