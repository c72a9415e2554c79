"""The collectives over NumPy arrays: the smallest binding, and all that works without a framework.

    import horovod.numpy as hvd

    hvd.init()
    total = hvd.allreduce(np.ones(3), op=hvd.Sum)

Names, parameters and errors are those of ``horovod.torch``, less what belongs to models and
optimizers (and ``allreduce``'s ``compression``); arrays are C-contiguous.
"""

from horovod.core import public
from horovod.core.collectives import barrier, join
from horovod.core.public import *  # noqa: F403
from horovod.core.world import is_homogeneous
from horovod.errors import HorovodInternalError
from horovod.numpy import adapter
from horovod.numpy.adapter import *  # noqa: F403
from horovod.numpy.objects import allgather_object, broadcast_object

__all__ = [
    "HorovodInternalError",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "is_homogeneous",
    "join",
]
__all__ += public.__all__
__all__ += adapter.__all__
