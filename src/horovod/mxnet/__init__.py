"""Distributed data-parallel training with Apache MXNet: ``import horovod.mxnet as hvd``."""

try:
    import mxnet  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "mxnet":
        raise
    raise ImportError(
        "horovod.mxnet needs MXNet 1.9, which is not installed here: pip install 'horovod[mxnet]'"
    ) from error

from horovod.core import public
from horovod.core.compatibility import check_extension as check_extension
from horovod.core.public import *  # noqa: F403
from horovod.mxnet import collectives
from horovod.mxnet import mpi_ops as mpi_ops
from horovod.mxnet.collectives import *  # noqa: F403
from horovod.mxnet.compression import Compression
from horovod.mxnet.functions import allgather_object, broadcast_object, broadcast_parameters
from horovod.mxnet.optimizer import DistributedOptimizer
from horovod.mxnet.trainer import DistributedTrainer

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
]
__all__ += public.__all__
__all__ += collectives.__all__
