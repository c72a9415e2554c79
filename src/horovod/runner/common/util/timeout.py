"""The import path for ``Timeout`` and its error; the classes are elsewhere."""

from horovod.errors import TimeoutException
from horovod.launch.compat.settings import Timeout

__all__ = ["Timeout", "TimeoutException"]
