"""Distributed data-parallel training with PyTorch: ``import horovod.torch as hvd``."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "horovod.torch needs PyTorch, which is not installed here: "
        "pip install 'horovod[pytorch]', or install torch as pytorch.org advises"
    ) from error

from horovod.core import public
from horovod.core.base.later import imported_later as _imported_later
from horovod.core.compatibility import check_extension
from horovod.core.operations import Adasum as AdaSum
from horovod.core.public import *  # noqa: F403
from horovod.torch import collectives, elastic, mpi_ops  # noqa: F401
from horovod.torch.balanced_sampler import BalancedSampler
from horovod.torch.collectives import *  # noqa: F403
from horovod.torch.compression import Compression
from horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from horovod.torch.local_steps import DiLoCo, LocalSGD
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.optimizer import _DistributedOptimizer as _DistributedOptimizer
from horovod.torch.uncompiled import keep_uncompiled as _keep_uncompiled

if TYPE_CHECKING:
    from horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "AdaSum",
    "BalancedSampler",
    "Compression",
    "DiLoCo",
    "DistributedOptimizer",
    "LocalSGD",
    "SyncBatchNorm",
    "_check_has_gpu",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_extension",
    "elastic",
]
__all__ += public.__all__
__all__ += collectives.__all__


# It imports torch's compiler, which takes as long as torch itself, and few programs need it.
_SYNC_BATCH_NORM = "horovod.torch.sync_batch_norm"
__getattr__ = _imported_later(
    __name__, dict.fromkeys(("SyncBatchNorm", "sync_batch_norm"), _SYNC_BATCH_NORM)
)


# Not rank(), size() and the like, which may be constants of a compiled function.
_keep_uncompiled(*(getattr(collectives, name) for name in collectives.__all__ if name.islower()))
_keep_uncompiled(allgather_object, broadcast_object)
_keep_uncompiled(broadcast_parameters, broadcast_optimizer_state)
_keep_uncompiled(DistributedOptimizer, DiLoCo, LocalSGD)
_keep_uncompiled(public.init, public.shutdown, public.add_process_set, public.remove_process_set)
_keep_uncompiled(public.metrics, public.log_metrics, public.dump_recorder)
_keep_uncompiled(public.start_timeline, public.stop_timeline)


def _check_has_gpu() -> bool:
    """Whether torch can use a GPU here."""
    return torch.cuda.is_available()
