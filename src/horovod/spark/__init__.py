"""Horovod on a Spark cluster; see docs/spark.md.

``stage`` runs a barrier stage. Each of its tasks (``task``) runs an embedded agent of the launcher
and sends its address (``TaskInfo``) to a store on the driver. A task of an elastic job fails with
its worker, so Spark starts it again.

Tasks import this package, so modules for the driver are imported when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.core.base import replaced

if TYPE_CHECKING:
    from horovod.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]

replaced.explain_modules()


def __getattr__(name: str) -> Any:
    if name in __all__:
        from horovod.spark import runner

        return getattr(runner, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
