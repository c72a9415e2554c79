"""Horovod on a Ray cluster: ``RayExecutor``; see docs/ray.md.

A job of fixed size (``static_job``) is one actor for each rank; rank 0's process has the store. An
elastic job (``elastic_job``) is an elastic ``horovod.run`` on embedded agents: one actor on each
node holds the resources of its workers and runs an agent. ``node_agents`` starts these actors and
tells the launcher their addresses. Helpers of the caller, such as the queue of its callbacks, run
on the caller's node, so the loss of another node does not end them.

Actors import this package, so modules for the driver are imported when they are used.
"""

from typing import TYPE_CHECKING

try:
    import ray as _ray  # noqa: F401
except ImportError as error:
    raise ImportError("horovod.ray needs Ray: pip install 'horovod[ray]'") from error

from horovod.core.base import replaced
from horovod.core.base.later import imported_later as _imported_later
from horovod.ray.worker import BaseHorovodWorker

if TYPE_CHECKING:
    from horovod.ray.elastic import ElasticRayExecutor
    from horovod.ray.executor import RayExecutor

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]

replaced.explain_modules()


__getattr__ = _imported_later(
    __name__, {"ElasticRayExecutor": "horovod.ray.elastic", "RayExecutor": "horovod.ray.executor"}
)
