"""Keras 3 on torch: gradients are torch tensors in host memory, reduced in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from horovod._keras.options import Options
from horovod._keras.reducer import GradientReducer, Plan, compute_gradients, global_variables
from horovod.torch.compression import Compression
from horovod.torch.gradient_exchange import Exchange, ExchangeCompressor, Pending, PlainExchange

__all__ = ["Compression", "compute_gradients", "global_variables", "make_reducer", "to_tensor"]


def make_reducer(name: str, options: Options) -> GradientReducer:
    """A reducer of torch gradients; operation names begin with ``name``."""
    return GradientReducer(name, options, _TorchExchange(options))


def to_tensor(array: Any) -> Tensor:
    """A tensor over a NumPy array."""
    return torch.from_numpy(array)


class _TorchExchange:
    """All gradients of a step at once, through ``horovod.torch``'s batches and groups."""

    def __init__(self, options: Options) -> None:
        factor = options.gradient_predivide_factor
        operation = (options.op, 1.0 / factor, factor, options.process_set)
        compression = options.compression
        self._exchange: Exchange
        if isinstance(compression, ExchangeCompressor):
            self._exchange = compression.make_exchange(*operation)
        else:
            self._exchange = PlainExchange(compression, *operation)

    # The engine cannot be part of a compiled graph.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def __call__(self, gradients: list[Any], plan: Plan) -> list[Any]:
        tensors = _own_memory(gradients)
        starts: list[Callable[[], Pending]] = []
        singles = list(plan.singles)
        for name, positions in plan.groups:
            if isinstance(self._exchange, PlainExchange):
                members = [tensors[p] for p in positions]
                starts.append(_bind(self._exchange.start_group, name, members))
            else:  # an exchange with rounds of its own takes batches only
                singles += [(f"{name}.{p}", p) for p in positions]
        if singles:
            names = [name for name, _ in singles]
            starts.append(_bind(self._exchange.start, names, [tensors[p] for _, p in singles]))
        _run_all(starts)
        return list(tensors)


def _bind(
    start: Callable[..., Pending], names: Any, tensors: list[Tensor]
) -> Callable[[], Pending]:
    return lambda: start(names, tensors)


def _run_all(starts: list[Callable[[], Pending]]) -> None:
    """Start all, then wait for all started ones, also after a failure."""
    pending: list[Pending] = []
    failure: Exception | None = None
    for start in starts:
        try:
            pending.append(start())
        except (ValueError, RuntimeError) as error:
            failure = error
            break
    for batch in pending:
        try:
            batch.finish()
        except RuntimeError as error:
            failure = failure or error
    if failure is not None:
        raise failure


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
