"""All operations and lifecycle functions of the TensorFlow binding under one module path.

Scripts import ``horovod.tensorflow.mpi_ops`` for historical reasons; nothing here needs MPI. The
operations whose names begin with an underscore are those that the original has here: they sum
unless told otherwise, because their callers divide by ``size()`` themselves.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from horovod.core import basics, compatibility, operations, public
from horovod.core.operations import Sum
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


def _summing(function: Callable[..., Any], order: Sequence[str] = ()) -> Any:
    """``function`` of dense tensors, which sums by default; ``order``: of its arguments."""
    known = inspect.signature(function).parameters
    parameters = [known[name] for name in order or known]
    signature = inspect.Signature(
        [each.replace(default=Sum) if each.name == "op" else each for each in parameters]
    )

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        return function(**{"op": Sum, **given.arguments})

    result: Any = not_converted(call)
    result.__signature__ = signature
    return result


_ORDER = ("name", "op", "ignore_name_scope", "process_set", "prescale_factor", "postscale_factor")
_allreduce = _summing(allreduce)
_grouped_allreduce = _summing(grouped_allreduce)
_reducescatter = _summing(reducescatter, ("tensor", *_ORDER))
_grouped_reducescatter = _summing(grouped_reducescatter, ("tensors", *_ORDER))
