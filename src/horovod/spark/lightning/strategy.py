"""The import path of ``HorovodStrategy`` before ``horovod.lightning``."""

from horovod.lightning import HorovodStrategy

__all__ = ["HorovodStrategy"]
