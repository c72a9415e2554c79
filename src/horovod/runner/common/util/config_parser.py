"""The import path for variables of options; the code is in ``horovod.launch.compat``."""

from horovod.launch.compat.job import set_env_from_args

__all__ = ["set_env_from_args"]
