"""All operations and lifecycle functions of the TensorFlow binding under one module path.

Scripts import ``horovod.tensorflow.mpi_ops`` for historical reasons; nothing here needs MPI. The
operations whose names begin with an underscore are those that the original has here: they sum
unless told otherwise, because their callers divide by ``size()`` themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.core import basics, compatibility, operations, public
from horovod.core.operations import Sum
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.core.public import *  # noqa: F403
from horovod.core.world import is_homogeneous
from horovod.tensorflow import collectives
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.collectives import *  # noqa: F403
from horovod.tensorflow.collectives import (
    allreduce,
    allreduce_batch,
    alltoall,
    broadcast_batch,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from horovod.tensorflow.implementation import implementation
from horovod.tensorflow.names import normalized as _normalize_name
from horovod.tensorflow.util import _executing_eagerly

__all__ = [
    "_allreduce",
    "_executing_eagerly",
    "_grouped_allreduce",
    "_grouped_reducescatter",
    "_normalize_name",
    "_reducescatter",
    "allreduce",
    "allreduce_batch",
    "alltoall",
    "broadcast_batch",
    "check_num_rank_power_of_2",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "implementation",
    "is_homogeneous",
    "reducescatter",
]
__all__ += public.__all__
__all__ += collectives.__all__

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
