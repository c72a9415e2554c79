"""The program that serves data to a training job from Spark executors.

    spark-submit horovod/spark/tensorflow/compute_worker.py CONFIGFILE --num-proc 4

The driver writes the config file that the training job reads, and ends when that job calls
``shutdown``; see ``horovod.tensorflow.data.compute_worker``. Driver, executors and training job run
on one machine.
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

import horovod.spark
from horovod.tensorflow.data.compute_service import compute_worker_fn
from horovod.tensorflow.data.compute_worker import parser, serving


def main(
    dispatchers: int,
    dispatcher_side: str,
    timeout: float,
    config_file: str | os.PathLike[str],
    num_proc: int | None = None,
) -> None:
    """Run a compute job of ``num_proc`` workers, by default Spark's default parallelism.

    Blocks until the training job ends it.

    Raises:
        ValueError: the number of workers is no multiple of ``dispatchers``.
        RuntimeError, TimeoutError: as from ``horovod.spark.run``.
    """
    context = SparkSession.builder.getOrCreate().sparkContext
    size = context.defaultParallelism if num_proc is None else num_proc
    with serving(dispatchers, dispatcher_side, timeout, config_file, size) as config:
        horovod.spark.run(compute_worker_fn, args=(config,), num_proc=size)


if __name__ == "__main__":
    options = parser("spark-submit compute_worker.py", "spark-submit")
    options.add_argument("--num-proc", type=int, help="compute workers")
    given = options.parse_args()
    main(given.dispatchers, given.dispatcher_side, given.timeout, given.configfile, given.num_proc)
