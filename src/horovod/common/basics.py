"""The import path for ``HorovodBasics``; the code is in ``horovod.basics``."""

from horovod.basics import HorovodBasics

__all__ = ["HorovodBasics"]
