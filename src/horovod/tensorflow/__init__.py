"""Distributed data-parallel training with TensorFlow: ``import horovod.tensorflow as hvd``."""

from typing import TYPE_CHECKING

try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    if error.name != "tensorflow":
        raise
    raise ImportError(
        "horovod.tensorflow needs TensorFlow, which is not installed here: "
        "pip install 'horovod[tensorflow]', or install tensorflow as tensorflow.org advises"
    ) from error

from horovod.core import public
from horovod.core.base.later import imported_later as _imported_later
from horovod.core.compatibility import check_extension as check_extension
from horovod.core.compatibility import gpu_available as gpu_available
from horovod.core.compatibility import split_list as split_list
from horovod.core.operations import Adasum as AdaSum  # noqa: F401
from horovod.core.public import *  # noqa: F403
from horovod.core.world import is_homogeneous
from horovod.tensorflow import collectives, elastic, reductions
from horovod.tensorflow import gradient_aggregation_eager as gradient_aggregation_eager
from horovod.tensorflow.collectives import *  # noqa: F403
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import (
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradient_reduction import (
    _make_allreduce_grads_fn as _make_allreduce_grads_fn,
)
from horovod.tensorflow.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
from horovod.tensorflow.mpi_ops import _allreduce as _allreduce
from horovod.tensorflow.optimizer import DistributedOptimizer
from horovod.tensorflow.optimizer import _DistributedOptimizer as _DistributedOptimizer
from horovod.tensorflow.reductions import *  # noqa: F403
from horovod.tensorflow.util import _cache as _cache
from horovod.tensorflow.util import _executing_eagerly as _executing_eagerly
from horovod.tensorflow.util import _make_subgraph as _make_subgraph
from horovod.tensorflow.util import refs_to_vars as refs_to_vars
from horovod.tensorflow.util import vars_to_refs as vars_to_refs

if TYPE_CHECKING:
    from horovod.tensorflow.hooks import BroadcastGlobalVariablesHook
    from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "is_homogeneous",
]
__all__ += public.__all__
__all__ += collectives.__all__
__all__ += reductions.__all__

_LegacyOptimizer = tf.compat.v1.train.Optimizer

# Keras takes as long to import as TensorFlow, and session hooks are gone from some TensorFlow.
__getattr__ = _imported_later(
    __name__,
    {
        "BroadcastGlobalVariablesHook": "horovod.tensorflow.hooks",
        "SyncBatchNormalization": "horovod.tensorflow.sync_batch_norm",
        "sync_batch_norm": "horovod.tensorflow.sync_batch_norm",
    },
)
