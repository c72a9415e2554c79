"""All collectives and lifecycle functions of the MXNet binding under one module path.

Scripts import ``horovod.mxnet.mpi_ops`` for historical reasons; nothing here needs MPI.
"""

from horovod.core import basics, compatibility, operations, public
from horovod.core.public import *  # noqa: F403
from horovod.core.world import is_homogeneous
from horovod.mxnet import collectives
from horovod.mxnet.collectives import *  # noqa: F403

__all__ = [
    "check_num_rank_power_of_2",
    "handle_average_backwards_compatibility",
    "is_homogeneous",
]
__all__ += public.__all__
__all__ += collectives.__all__

_basics = basics.HorovodBasics()
handle_average_backwards_compatibility = compatibility.op_resolver(operations)
check_num_rank_power_of_2 = compatibility.is_power_of_2
