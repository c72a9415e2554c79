"""The import path for ``in_thread``; the code is in ``horovod.core.compatibility``."""

from horovod.core.compatibility import in_thread

__all__ = ["in_thread"]
