"""The import path for ``in_thread``; the code is in ``horovod.compatibility``."""

from horovod.compatibility import in_thread

__all__ = ["in_thread"]
