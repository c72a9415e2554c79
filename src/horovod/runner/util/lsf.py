"""The import path for ``LSFUtils``; the class is in ``horovod.launch.compat``."""

from horovod.launch.compat.machines import LSFUtils

__all__ = ["LSFUtils"]
