"""The import path for ``run`` and ``run_elastic``; the code is beside this module."""

from horovod.spark.run_elastic_function import run_elastic
from horovod.spark.run_function import run

__all__ = ["run", "run_elastic"]
