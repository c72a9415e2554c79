"""All operations and lifecycle functions of the TensorFlow binding under one module path.

Scripts import ``horovod.tensorflow.mpi_ops`` for historical reasons; nothing here needs MPI. The
operations whose names begin with an underscore are those that the original has here: they sum
unless told otherwise, because their callers divide by ``size()`` themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.core import basics, compatibility, operations
from horovod.core.operations import Adasum, Average, Max, Min, Product, Sum
from horovod.core.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.core.tracing import start_timeline, stop_timeline
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
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.collectives import (
    allgather,
    allreduce,
    allreduce_batch,
    alltoall,
    broadcast,
    broadcast_,
    broadcast_batch,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    implementation,
    join,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from horovod.tensorflow.names import normalized as _normalize_name
from horovod.tensorflow.util import _executing_eagerly

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "_allreduce",
    "_executing_eagerly",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_normalize_name",
    "_reducescatter",
    "add_process_set",
    "allgather",
    "allreduce",
    "allreduce_batch",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_batch",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "implementation",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]

_basics = basics.HorovodBasics()
handle_average_backwards_compatibility = compatibility.op_resolver(operations)
check_num_rank_power_of_2 = compatibility.is_power_of_2


@not_converted
def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """``allreduce`` of a dense tensor that sums by default."""
    factors = (prescale_factor, postscale_factor)
    return allreduce(tensor, name, op, *factors, ignore_name_scope, process_set)


@not_converted
def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """``grouped_allreduce`` of dense tensors that sums by default."""
    factors = (prescale_factor, postscale_factor)
    return grouped_allreduce(tensors, name, op, *factors, ignore_name_scope, process_set)


@not_converted
def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """``reducescatter`` of a dense tensor that sums by default."""
    factors = (prescale_factor, postscale_factor)
    return reducescatter(tensor, name, op, *factors, ignore_name_scope, process_set)


@not_converted
def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """``grouped_reducescatter`` of dense tensors that sums by default."""
    factors = (prescale_factor, postscale_factor)
    return grouped_reducescatter(tensors, name, op, *factors, ignore_name_scope, process_set)
