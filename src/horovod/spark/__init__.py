"""Horovod on a Spark cluster; see docs/spark.md.

``stage`` runs a barrier stage. Each of its tasks (``task``) runs an embedded agent of the launcher
and sends its address (``TaskInfo``) to a store on the driver. A task of an elastic job fails with
its worker, so Spark starts it again.

Tasks import this package, so modules for the driver are imported when they are used.
"""

from typing import TYPE_CHECKING

from horovod.core.base import replaced
from horovod.core.base.later import imported_later as _imported_later

if TYPE_CHECKING:
    from horovod.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]

replaced.explain_modules()


__getattr__ = _imported_later(__name__, dict.fromkeys(__all__, "horovod.spark.runner"))
