"""Keras 3 on torch: gradients are torch tensors in host memory, reduced in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from horovod._keras.reducer import GradientReducer, Options, Plan
from horovod._keras.reducer import compute_gradients as compute_gradients
from horovod._keras.reducer import global_variables as global_variables
from horovod.core.compression import compress_all, decompress_all
from horovod.core.handles import wait_for_all
from horovod.torch import adapter
from horovod.torch.compression import Compression as Compression
from horovod.torch.feedback_exchange import FeedbackExchange
from horovod.torch.gradient_exchange import Pending, PlainExchange, exchange_of


def make_reducer(name: str, options: Options) -> GradientReducer:
    """A reducer of torch gradients; operation names begin with ``name``."""
    return GradientReducer(name, options, _TorchExchange(options))


def to_tensor(array: Any) -> Tensor:
    """A tensor over a NumPy array."""
    if array.dtype.name == "bfloat16":  # of ml_dtypes, which torch does not know
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


class _TorchExchange:
    """All gradients of a step at once, through ``horovod.torch``'s batches and groups."""

    def __init__(self, options: Options) -> None:
        factor = options.gradient_predivide_factor
        operation = (options.op, 1.0 / factor, factor)
        self._exchange = exchange_of(options.compression, operation, options.process_set)

    # The engine cannot be part of a compiled graph.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def __call__(self, gradients: list[Any], plan: Plan) -> list[Any]:
        tensors = _own_memory(gradients)
        wait_for_all(self._start(tensors, plan), lambda pending: pending.finish())
        return list(tensors)

    def _start(self, tensors: list[Tensor], plan: Plan) -> Iterator[Pending]:
        singles, instead_of = list(plan.singles), [name for name, _ in plan.singles]
        for name, positions in plan.groups:
            if isinstance(self._exchange, PlainExchange):
                members = [plan.names[p] for p in positions]
                yield self._exchange.start_group(name, [tensors[p] for p in positions], members)
            else:  # a compressor with its own exchange takes only batches
                singles += [(f"{name}.{p}", p) for p in positions]
                instead_of.append(f"grouped_allreduce.{name}")
        if singles:
            names, chosen = [name for name, _ in singles], [tensors[p] for _, p in singles]
            if isinstance(self._exchange, FeedbackExchange):
                yield self._exchange.start(names, chosen, instead_of=instead_of)
            else:
                yield self._exchange.start(names, chosen)


class Sharing:
    """Moves the parts of gradients and variables of an optimizer whose step ranks share.

    Args:
        name: the beginning of operation names; the same on every rank.
        options: how to reduce.
    """

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self._compression = options.compression
        factor = options.gradient_predivide_factor
        self._operation = (options.op, options.process_set, 1.0 / factor, factor)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def reduce(self, gradients: list[Any]) -> list[Any]:
        """This rank's parts of flat gradients, reduced."""
        wires, contexts = compress_all(self._compression, [g.contiguous() for g in gradients])
        parts = adapter.grouped_reducescatter(wires, f"{self._name}.shares", *self._operation)
        return decompress_all(self._compression, parts, contexts)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def gather(self, parts: list[Any]) -> list[Any]:
        """What all ranks have, joined."""
        process_set = self._operation[1]
        found = [part.detach() for part in parts]
        return list(adapter.grouped_allgather(found, f"{self._name}.variables", process_set))


def _own_memory(gradients: list[Any]) -> list[Tensor]:
    """The gradients as contiguous tensors that share no memory, so they can be reduced in place.

    ``torch.autograd.grad`` may return a view, or one tensor for two variables.
    """
    seen: set[int] = set()
    result = []
    for gradient in gradients:
        tensor = gradient.detach()
        if not tensor.is_contiguous() or tensor.data_ptr() in seen:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        seen.add(tensor.data_ptr())
        result.append(tensor)
    return result
