"""The import path for ``Settings``; the classes are in ``horovod.launch.others``."""

from horovod.launch.others.settings import (
    BaseSettings,
    Settings,
)

__all__ = [
    "BaseSettings",
    "Settings",
]
