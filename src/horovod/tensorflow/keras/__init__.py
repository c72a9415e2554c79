"""Distributed data-parallel training with ``tf.keras``: ``import horovod.tensorflow.keras as hvd``.

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

The order of callbacks: broadcast, metric averages, learning rate, then callbacks that use their
results. ``tf.keras`` is Keras 3 or Keras 2, depending on TensorFlow.
"""

import tensorflow as tf

from horovod._keras.api import KerasApi
from horovod.core import public
from horovod.core.public import *  # noqa: F403
from horovod.tensorflow.keras import callbacks, elastic

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
__all__ += public.__all__
for _name in ("Adasum", "Max", "Min", "Product"):  # not exported by the original
    __all__.remove(_name)

_api = KerasApi(tf.keras)

Compression = _api.Compression
DistributedOptimizer = _api.DistributedOptimizer
load_model = _api.load_model
broadcast_global_variables = _api.broadcast_global_variables
allreduce = _api.allreduce
allgather = _api.allgather
broadcast = _api.broadcast
reducescatter = _api.reducescatter
