"""All collectives and lifecycle functions of the torch binding under one module path.

Scripts import ``horovod.torch.mpi_ops`` for historical reasons; nothing here needs MPI.
"""

from __future__ import annotations

from horovod.core import basics, compatibility, operations
from horovod.core.collectives import (
    barrier,
    join,
)
from horovod.core.compatibility import check_installed_version
from horovod.core.counters import metrics
from horovod.core.operations import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from horovod.core.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.core.tracing import (
    dump_recorder,
    start_timeline,
    stop_timeline,
)
from horovod.core.world import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
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
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
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
    "ccl_built",
    "check_installed_version",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "dump_recorder",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

_basics = basics.HorovodBasics()
handle_average_backwards_compatibility = compatibility.op_resolver(operations)
check_num_rank_power_of_2 = compatibility.is_power_of_2
