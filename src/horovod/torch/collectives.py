"""The collectives of ``horovod.torch``, from the modules that define them."""

from horovod.core.collectives import barrier, join
from horovod.errors import HorovodInternalError
from horovod.torch import adapter, differentiable
from horovod.torch.adapter import *  # noqa: F403
from horovod.torch.differentiable import *  # noqa: F403
from horovod.torch.sparse_gradients import sparse_allreduce_async

__all__ = ["HorovodInternalError", "barrier", "join", "sparse_allreduce_async"]
__all__ += adapter.__all__
__all__ += differentiable.__all__
