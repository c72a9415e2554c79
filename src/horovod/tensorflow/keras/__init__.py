"""Distributed data-parallel training with ``tf.keras``: ``import horovod.tensorflow.keras as hvd``.

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

The order of callbacks: broadcast, metric averages, learning rate, then callbacks that use their
results. ``tf.keras`` is Keras 3 or Keras 2, depending on TensorFlow.
"""

import tensorflow as tf

from horovod._keras.api import KerasApi
from horovod.core.counters import metrics
from horovod.core.operations import Average, Sum
from horovod.core.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horovod.core.tracing import dump_recorder, start_timeline, stop_timeline
from horovod.core.world import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
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
from horovod.tensorflow.keras import callbacks, elastic

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "ProcessSet",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "dump_recorder",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "metrics",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

_api = KerasApi(tf.keras)

Compression = _api.Compression
DistributedOptimizer = _api.DistributedOptimizer
load_model = _api.load_model
broadcast_global_variables = _api.broadcast_global_variables
allreduce = _api.allreduce
allgather = _api.allgather
broadcast = _api.broadcast
reducescatter = _api.reducescatter
