"""The import path for ``LSFUtils``; the class is in ``horovod.launch.others``."""

from horovod.launch.others.machines import (
    LSFUtils,
)

__all__ = [
    "LSFUtils",
]
