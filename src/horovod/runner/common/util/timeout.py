"""The import path for ``TimeoutException``; the class is in ``horovod.errors``."""

from horovod.errors import TimeoutException

__all__ = ["TimeoutException"]
