"""The collectives of ``horovod.torch``, from the modules that define them."""

from horovod.core.collectives import barrier, join
from horovod.errors import HorovodInternalError
from horovod.torch.adapter import (
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    poll,
    reducescatter_async,
    synchronize,
)
from horovod.torch.differentiable import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    reducescatter,
)
from horovod.torch.differentiable_groups import (
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
)
from horovod.torch.sparse import sparse_allreduce_async

__all__ = [
    "HorovodInternalError",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
