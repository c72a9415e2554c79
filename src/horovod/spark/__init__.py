"""Horovod on a Spark cluster; see docs/spark.md.

``stage`` runs a barrier stage. Each of its tasks (``task``) has a guest of the launcher and tells a
store on the driver where it is (``card``). A task of an elastic job ends with its worker's failure,
so Spark starts it again.

A task of Spark's imports this package to become a worker's guest, so what is for the driver comes
when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.core.base import replaced

if TYPE_CHECKING:
    from horovod.spark.run_elastic_function import run_elastic
    from horovod.spark.run_function import run

__all__ = ["run", "run_elastic"]

replaced.explain_modules()


def __getattr__(name: str) -> Any:
    if name == "run":
        from horovod.spark.run_function import run

        return run
    if name == "run_elastic":
        from horovod.spark.run_elastic_function import run_elastic

        return run_elastic
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
