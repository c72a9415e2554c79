"""The import path for ``Settings``; the classes are in ``horovod.launch.compat``."""

from horovod.launch.compat.settings import BaseSettings, Settings

__all__ = ["BaseSettings", "Settings"]
