"""The import path for ``HorovodBasics``; the code is in ``horovod.core.basics``."""

from horovod.core.basics import HorovodBasics

__all__ = ["HorovodBasics"]
