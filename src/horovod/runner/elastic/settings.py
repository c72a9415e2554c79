"""The import path for ``ElasticSettings``; the class is in ``horovod.launch.others``."""

from horovod.launch.others.settings import (
    ElasticSettings,
)

__all__ = [
    "ElasticSettings",
]
