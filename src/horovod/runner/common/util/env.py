"""The import path for ``get_env_rank_and_size``; the code is in ``horovod.compatibility``."""

from horovod.compatibility import rank_and_size as get_env_rank_and_size

__all__ = ["get_env_rank_and_size"]
