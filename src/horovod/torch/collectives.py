"""The collectives of ``horovod.torch``, from the modules that define them."""

from horovod.core.collectives import barrier, join
from horovod.errors import HorovodInternalError
from horovod.torch import adapter, differentiable_groups
from horovod.torch.adapter import *  # noqa: F403
from horovod.torch.differentiable import allgather, allreduce, alltoall, broadcast, reducescatter
from horovod.torch.differentiable_groups import *  # noqa: F403
from horovod.torch.sparse import sparse_allreduce_async

__all__ = [
    "HorovodInternalError",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "join",
    "reducescatter",
    "sparse_allreduce_async",
]
__all__ += adapter.__all__
__all__ += differentiable_groups.__all__
