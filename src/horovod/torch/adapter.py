"""torch tensors for the engine: the low, non-differentiable half of ``horovod.torch``.

With a torch that offers DLPack's C exchange table (2.10 and later) the engine reads a tensor in one
native call; with an older one, from its Python attributes. Tensors are in host memory or on CUDA
GPUs. On a GPU a collective runs after the work that is in the current stream when it is submitted.
Work that enters the current stream after ``synchronize`` runs after the collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch

from horovod import _native
from horovod.core.built import cuda_built
from horovod.core.collectives import Collectives
from horovod.core.grouped_collectives import GroupedCollectives
from horovod.core.handles import describe_all, integers, named_error, submit_and_wait
from horovod.core.operations import COMPLEX, Dtype, Intent
from horovod.core.world import has_spare_cores
from horovod.torch.uncompiled import keep_uncompiled

# The exports of ``horovod.torch``. The rest is for the modules beside this one; the blocking calls
# that users see are those of ``differentiable``.
__all__ = [
    "allgather_async",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter_async",
    "synchronize",
]

# Before 2.3 torch has no uint16.
_NAMED = {kind.name.lower(): kind for kind in Dtype if hasattr(torch, kind.name.lower())}
DTYPES: dict[torch.dtype, Dtype] = {getattr(torch, name): kind for name, kind in _NAMED.items()}

# Of complex numbers.
_PARTS = {
    torch.complex32: Dtype.FLOAT16,
    torch.complex64: Dtype.FLOAT32,
    torch.complex128: Dtype.FLOAT64,
}

_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}

_PLACE = torch.empty(1, device="cpu")  # of empty tensors, which have no memory

_TORCH_DTYPES = {dtype: torch_dtype for torch_dtype, dtype in DTYPES.items()}


def _current_stream(device: int) -> int:
    address: int = torch.cuda.current_stream(device).cuda_stream
    return address


class _TorchAdapter:
    """``handles.Adapter`` over DLPack's exchange table."""

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
        splits: Sequence[int] = (),
    ) -> int:
        args = (self._reader, operation, name, tensor, output, intent)
        return engine.submit_tensor(*args, splits) if splits else engine.submit_tensor(*args)

    def run(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: torch.Tensor,
        output: torch.Tensor | None,
        splits: Sequence[int] = (),
        /,
    ) -> list[_native.Output]:
        return engine.run_tensor(self._reader, operation, name, tensor, output, splits)

    def submit_batch(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        names: list[str],
        tensors: list[torch.Tensor],
        intent: Intent,
        errors: Sequence[torch.Tensor | None] = (),
        /,
    ) -> int:
        args = (self._reader, operation, names, tensors, intent)
        return engine.submit_tensors(*args, _addresses(errors))

    def submit_group(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensors: list[torch.Tensor],
        outputs: list[torch.Tensor] | None,
        intent: Intent,
        members: Sequence[str] = (),
        errors: Sequence[torch.Tensor | None] = (),
        /,
    ) -> int:
        args = (self._reader, operation, name, tensors, outputs, intent)
        return engine.submit_tensor_group(*args, _addresses(errors), list(members))

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        try:
            return torch.empty_like(tensor, requires_grad=False)
        except TypeError:
            if isinstance(tensor, torch.Tensor):
                raise
            return tensor  # its submission is refused, by an error that names the operation

    def from_output(self, output: _native.Output, dtype: Dtype) -> torch.Tensor:
        if output.device >= 0:
            return _copied(output, dtype)
        return torch.from_dlpack(output.as_dlpack(dtype))  # type: ignore[attr-defined]

    def result(self, output: _native.Output, tensor: torch.Tensor) -> torch.Tensor:
        parts = _PARTS.get(tensor.dtype)
        if parts is None:
            return self.from_output(output, DTYPES[tensor.dtype])
        return torch.view_as_complex(self.from_output(output, parts))

    def split_list(self, splits: Any) -> list[int]:
        if isinstance(splits, torch.Tensor):
            if splits.dtype != torch.int32 or splits.dim() != 1:
                raise ValueError(
                    f"alltoall: splits must be an int32 vector, found {splits.dim()} dimensions of "
                    f"{splits.dtype}"
                )
            numbers: list[int] = splits.tolist()
            return numbers
        return integers(splits)


class _AttributeAdapter(_TorchAdapter):
    """The same for a torch without the exchange table: reads the tensors' Python attributes."""

    def __init__(self) -> None:
        super().__init__(None)
        self._streams = _native.PythonStreams(_current_stream)

    def submit(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensor: torch.Tensor,
        output: torch.Tensor | None,
        intent: Intent,
        splits: Sequence[int] = (),
    ) -> int:
        try:
            address, shape, dtype = _describe(tensor)
            out, out_bytes = (0, 0) if output is None else (_describe(output)[0], output.nbytes)
        except ValueError as error:
            raise named_error(error, operation, name) from None
        place = _device_of(tensor), self._streams, out_bytes
        return engine.submit(operation, name, address, out, shape, dtype, intent, splits, *place)

    def run(self, *args: Any) -> list[_native.Output]:
        return submit_and_wait(self, *args)

    def submit_batch(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        names: list[str],
        tensors: list[torch.Tensor],
        intent: Intent,
        errors: Sequence[torch.Tensor | None] = (),
        /,
    ) -> int:
        described = _describe_all(tensors, tensors, operation, names, is_group=False)
        places = [_device_of(tensor) for tensor in tensors], self._streams
        addresses = _addresses(errors)
        return engine.submit_many(operation, names, described, intent, *places, addresses)

    def submit_group(
        self,
        engine: _native.Engine,
        operation: _native.Operation,
        name: str | None,
        tensors: list[torch.Tensor],
        outputs: list[torch.Tensor] | None,
        intent: Intent,
        members: Sequence[str] = (),
        errors: Sequence[torch.Tensor | None] = (),
        /,
    ) -> int:
        described = _describe_all(tensors, outputs, operation, repeat(name), is_group=True)
        places = [_device_of(tensor) for tensor in tensors], self._streams
        out_bytes = [output.nbytes for output in outputs or ()]
        options = (*places, out_bytes, _addresses(errors), list(members))
        return engine.submit_group(operation, name, described, intent, *options)


def not_a_tensor(value: object) -> str:
    """What to say about an argument that is no tensor."""
    is_like = isinstance(value, (int, float, list, tuple)) or hasattr(value, "__array__")
    hint = "; torch.as_tensor makes one of it" if is_like else ""
    return f"expected a torch tensor, found {type(value).__name__}{hint}"


def _way_out(tensor: Any) -> str | None:
    """What to do about something that is not dense, or no tensor; None for others."""
    if not hasattr(tensor, "layout"):
        return not_a_tensor(tensor)
    if tensor.layout not in _SPARSE:
        return None
    return (
        f"the tensor is sparse ({tensor.layout}); sparse_allreduce_async reduces COO tensors, "
        "DistributedOptimizer sparse gradients (as dense ones with sparse_as_dense=True); other "
        "calls need tensor.to_dense()"
    )


def _describe(tensor: torch.Tensor) -> tuple[int, list[int], int]:
    if (way_out := _way_out(tensor)) is not None:
        raise ValueError(way_out)
    dtype = int(DTYPES.get(tensor.dtype, _PARTS.get(tensor.dtype, -1)))
    if dtype < 0:
        raise ValueError(f"the tensor's dtype {tensor.dtype} is not supported")
    if tensor.dtype.is_complex:
        dtype |= COMPLEX
        if tensor.is_conj():
            raise ValueError(
                "the tensor is the conjugate of its memory; pass tensor.resolve_conj()"
            )
    if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(
            "the tensor is neither dense host memory nor a CUDA GPU's; move it with .cpu() first"
        )
    if not tensor.is_contiguous():
        raise ValueError("the tensor is not contiguous; pass tensor.contiguous()")
    # The engine takes no address for "allocate the result".
    return tensor.data_ptr() or _PLACE.data_ptr(), list(tensor.shape), dtype


def _addresses(errors: Sequence[torch.Tensor | None]) -> list[int]:
    return [0 if error is None else error.data_ptr() for error in errors]


def _device_of(tensor: torch.Tensor) -> int:
    """As the engine counts: -1 for the host."""
    return -1 if tensor.device.type == "cpu" else tensor.device.index


def _copied(output: _native.Output, dtype: Dtype) -> torch.Tensor:
    """A result on a GPU, in memory that torch knows the uses of."""
    device = torch.device("cuda", output.device)
    tensor = torch.empty(output.shape, dtype=_TORCH_DTYPES[dtype], device=device)
    output.copy_to(tensor.data_ptr(), tensor.nbytes, _current_stream(output.device))
    return tensor


def _address_of(output: torch.Tensor) -> int:
    return _describe(output)[0]


_describe_all = partial(describe_all, _describe, _address_of)


def _make_adapter() -> _TorchAdapter:
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    try:
        return _TorchAdapter(_native.TensorReader(capsule, _way_out))
    except (TypeError, ValueError):  # none, or of a version this build does not know
        return _AttributeAdapter()


def spare_cores() -> bool:
    """Whether this machine has more usable cores than ranks, so that overlapping pays."""
    return has_spare_cores()


def within_reach(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` where the engine takes it as it is, else a copy in host memory."""
    return tensor if tensor.is_cuda and cuda_built() else tensor.cpu()


keep_uncompiled(Collectives, GroupedCollectives)

adapter = _make_adapter()
_collectives: Collectives[torch.Tensor] = Collectives(adapter)

allgather = _collectives.allgather
allgather_async = _collectives.allgather_async
allreduce = _collectives.allreduce
allreduce_ = _collectives.allreduce_
allreduce_async = _collectives.allreduce_async
allreduce_async_ = _collectives.allreduce_async_
allreduce_batch_async_ = _collectives.allreduce_batch_async_
alltoall = _collectives.alltoall
alltoall_async = _collectives.alltoall_async
broadcast = _collectives.broadcast
broadcast_ = _collectives.broadcast_
broadcast_async = _collectives.broadcast_async
broadcast_async_ = _collectives.broadcast_async_
group_into_async = _collectives.group_into_async
grouped_allgather = _collectives.grouped_allgather
grouped_allgather_async = _collectives.grouped_allgather_async
grouped_allreduce = _collectives.grouped_allreduce
grouped_allreduce_ = _collectives.grouped_allreduce_
grouped_allreduce_async = _collectives.grouped_allreduce_async
grouped_allreduce_async_ = _collectives.grouped_allreduce_async_
grouped_reducescatter = _collectives.grouped_reducescatter
grouped_reducescatter_async = _collectives.grouped_reducescatter_async
poll = _collectives.poll
reducescatter = _collectives.reducescatter
reducescatter_async = _collectives.reducescatter_async
synchronize = _collectives.synchronize
