"""Horovod on a Ray cluster: ``RayExecutor``; see docs/ray.md.

An actor imports this package to become a worker, so what is for the driver comes when it is asked
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise ImportError("horovod.ray needs Ray: pip install 'horovod[ray]'") from error

from horovod import replaced
from horovod.ray.worker import BaseHorovodWorker

if TYPE_CHECKING:
    from horovod.ray.elastic import ElasticRayExecutor
    from horovod.ray.executor import RayExecutor

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]

replaced.explain_modules()


def __getattr__(name: str) -> Any:
    if name == "RayExecutor":
        from horovod.ray.executor import RayExecutor

        return RayExecutor
    if name == "ElasticRayExecutor":
        from horovod.ray.elastic import ElasticRayExecutor

        return ElasticRayExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
