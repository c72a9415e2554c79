"""Horovod on a Ray cluster: ``RayExecutor``; see docs/ray.md.

A job of fixed size (``static_job``) is one actor for each rank; rank 0's process has the store. An
elastic job (``elastic_job``) is an elastic ``horovod.run`` on guests: one actor on each node
(``node_guest``) holds the resources of its workers, and ``node_keeper`` makes such actors and tells
the launcher which there are. What serves the caller, such as the queue of its callbacks, is on the
caller's node, so that no lost node takes it along.

An actor imports this package to become a worker, so what is for the driver comes when it is asked
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise ImportError("horovod.ray needs Ray: pip install 'horovod[ray]'") from error

from horovod.core.base import replaced
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
