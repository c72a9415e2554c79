"""torch tensors for the engine: the low, non-differentiable half of ``horovod.torch``.

With a torch that offers DLPack's C exchange table (2.10 and later) the engine reads a tensor in one
native call; with an older one, from its Python attributes.
"""

from __future__ import annotations

from typing import Any

import torch

from horovod import _native
from horovod.operations import Collectives, Dtype, Intent, barrier, submit_and_wait
from horovod.world import engine

__all__ = [
    "DTYPES",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "allreduce_batch_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "poll",
    "spare_cores",
    "synchronize",
]

DTYPES = {
    torch.uint8: Dtype.UINT8,
    torch.int8: Dtype.INT8,
    torch.int16: Dtype.INT16,
    torch.int32: Dtype.INT32,
    torch.int64: Dtype.INT64,
    torch.float16: Dtype.FLOAT16,
    torch.float32: Dtype.FLOAT32,
    torch.float64: Dtype.FLOAT64,
    torch.bool: Dtype.BOOL,
    torch.bfloat16: Dtype.BFLOAT16,
}


class _TorchAdapter:
    """``operations.Adapter`` over DLPack's exchange table."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def submit(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: torch.Tensor,
        output: torch.Tensor | None,
        intent: Intent,
    ) -> int:
        return engine.submit_tensor(self._reader, operation, name, tensor, output, intent)

    def run(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: torch.Tensor,
        output: torch.Tensor | None,
    ) -> list[_native.Output]:
        return engine.run_tensor(self._reader, operation, name, tensor, output)

    def submit_batch(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        names: list[str],
        tensors: list[torch.Tensor],
        intent: Intent,
    ) -> int:
        return engine.submit_tensors(self._reader, operation, names, tensors, intent)

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, requires_grad=False)

    def from_output(self, output: _native.Output, tensor: torch.Tensor) -> torch.Tensor:
        return torch.from_dlpack(output.as_dlpack(DTYPES[tensor.dtype]))  # type: ignore[attr-defined]


class _AttributeAdapter(_TorchAdapter):
    """The same for a torch without the exchange table: reads the tensors' Python attributes."""

    def __init__(self) -> None:
        super().__init__(None)

    def submit(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: torch.Tensor,
        output: torch.Tensor | None,
        intent: Intent,
    ) -> int:
        address, shape, dtype = _describe(tensor)
        out = 0 if output is None else _describe(output)[0]
        return engine.submit(operation, name, address, out, shape, dtype, intent)

    def run(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: torch.Tensor,
        output: torch.Tensor | None,
    ) -> list[_native.Output]:
        return submit_and_wait(self, engine, operation, name, tensor, output)

    def submit_batch(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        names: list[str],
        tensors: list[torch.Tensor],
        intent: Intent,
    ) -> int:
        described = [_describe(tensor) for tensor in tensors]
        return engine.submit_many(operation, names, described, intent)


def _describe(tensor: torch.Tensor) -> tuple[int, list[int], int]:
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"the tensor's dtype {tensor.dtype} is not supported")
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise ValueError("the tensor is not dense host memory; move it with .cpu() first")
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous; pass tensor.contiguous()")
    return tensor.data_ptr(), list(tensor.shape), int(dtype)


def _make_adapter() -> _TorchAdapter:
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    try:
        return _TorchAdapter(_native.TensorReader(capsule))
    except (TypeError, ValueError):  # none, or of a version this build does not know
        return _AttributeAdapter()


def spare_cores() -> bool:
    """Whether this machine has more usable cores than ranks, so that overlapping pays."""
    return engine().has_spare_cores


_collectives: Collectives[torch.Tensor] = Collectives(_make_adapter())

allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
allreduce = _collectives.allreduce
allreduce_ = _collectives.allreduce_
allreduce_async = _collectives.allreduce_async
allreduce_async_ = _collectives.allreduce_async_
allreduce_batch_async_ = _collectives.allreduce_batch_async_
broadcast = _collectives.broadcast
broadcast_ = _collectives.broadcast_
broadcast_async = _collectives.broadcast_async
broadcast_async_ = _collectives.broadcast_async_
poll = _collectives.poll
synchronize = _collectives.synchronize
