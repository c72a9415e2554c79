"""Distributed data-parallel training with Keras: ``import horovod.keras as hvd``.

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

Keras 3 on its TensorFlow, torch and JAX backends, and Keras 2. The order of callbacks: broadcast,
metric averages, learning rate, then callbacks that use their results.
"""

from __future__ import annotations

from typing import Any

try:
    import keras
except ModuleNotFoundError as error:
    if error.name != "keras":
        raise
    raise ImportError(
        "horovod.keras needs Keras, which is not installed here: pip install 'horovod[keras]'"
    ) from error

from horovod._keras.api import KerasApi
from horovod.core import public
from horovod.core.gradient_groups import Groups
from horovod.core.operations import Average, Sum
from horovod.core.public import *  # noqa: F403
from horovod.keras import callbacks, elastic

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
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
_SETS = ("ProcessSet", "add_process_set", "remove_process_set")
for _name in ("Max", "Min", "Product", *_SETS):  # not exported by the original
    __all__.remove(_name)

_api = KerasApi(keras)

Compression = _api.Compression
PartialDistributedOptimizer = _api.PartialDistributedOptimizer
load_model = _api.load_model
broadcast_global_variables = _api.broadcast_global_variables
allgather = _api.allgather
broadcast = _api.broadcast
reducescatter = _api.reducescatter


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Groups = None,
    sharded: Any = False,
) -> Any:
    """Make an optimizer that steps on the gradients of all ranks.

    ``PartialDistributedOptimizer`` explains the arguments; this has no local layers.
    ``num_groups`` is deprecated, use ``groups``. With ``sharded=True`` each rank updates its share
    of the elements of every variable only, and keeps the optimizer's state of this share: on
    TensorFlow and torch, for optimizers that treat every element alike. ``"elementwise"`` says so
    of one that is not Keras's. All ranks call ``optimizer.gather_state()`` before one saves it.
    """
    transfer = (name, device_dense, device_sparse, compression, sparse_as_dense)
    factors = (gradient_predivide_factor, op)
    return _api.DistributedOptimizer(
        optimizer, *transfer, *factors, num_groups=num_groups, groups=groups, sharded=sharded
    )


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = True,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduce a value over all ranks; blocks until all ranks have called it.

    As ``horovod.tensorflow.keras.allreduce``, except that ``average`` is True by default: without
    ``op`` it selects ``Average`` or ``Sum``.
    """
    if op is None:
        op = Average if average is None or average else Sum
    factors = (prescale_factor, postscale_factor)
    return _api.allreduce(value, name, None, *factors, op, compression)
