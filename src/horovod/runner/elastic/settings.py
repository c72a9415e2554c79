"""The import path for ``ElasticSettings``; the class is in ``horovod.launch.compat``."""

from horovod.launch.compat.settings import ElasticSettings

__all__ = ["ElasticSettings"]
