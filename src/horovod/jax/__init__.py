"""Distributed data-parallel training with JAX: ``import horovod.jax as hvd``."""

try:
    import jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ImportError(
        "horovod.jax needs JAX, which is not installed here: pip install 'horovod[jax]'"
    ) from error

from horovod.core import public
from horovod.core.collectives import barrier, join
from horovod.core.public import *  # noqa: F403
from horovod.core.world import is_homogeneous
from horovod.errors import HorovodInternalError
from horovod.jax import collectives, elastic
from horovod.jax.collectives import *  # noqa: F403
from horovod.jax.compression import Compression
from horovod.jax.functions import allgather_object, broadcast_object, broadcast_parameters
from horovod.jax.local_steps import DiLoCo, LocalSGD
from horovod.jax.optimizer import DistributedOptimizer
from horovod.jax.sharded_state import shard_optimizer_state, whole_optimizer_state

__all__ = [
    "Compression",
    "DiLoCo",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalSGD",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_parameters",
    "elastic",
    "is_homogeneous",
    "join",
    "shard_optimizer_state",
    "whole_optimizer_state",
]
__all__ += public.__all__
__all__ += collectives.__all__
