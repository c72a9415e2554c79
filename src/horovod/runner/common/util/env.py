"""The import path for what variables say; the code is elsewhere."""

from horovod.core.compatibility import rank_and_size as get_env_rank_and_size
from horovod.launch.compat.machines import is_exportable

__all__ = ["get_env_rank_and_size", "is_exportable"]
