"""The names that all bindings share: life cycle, process sets, reduce ops, recordings.

A binding exports them with ``from horovod.core.public import *`` and ``__all__ += public.__all__``.
"""

from horovod.core.basics import is_initialized
from horovod.core.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    mpi_built,
    nccl_built,
    rocm_built,
)
from horovod.core.operations import Adasum, Average, Max, Min, Product, Sum
from horovod.core.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.core.tracing import dump_recorder, start_timeline, stop_timeline
from horovod.core.world import (
    cross_rank,
    cross_size,
    gloo_enabled,
    init,
    local_rank,
    local_size,
    metrics,
    mpi_enabled,
    mpi_threads_supported,
    rank,
    shutdown,
    size,
)
from horovod.metrics.sampling import log_metrics

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "dump_recorder",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "log_metrics",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
