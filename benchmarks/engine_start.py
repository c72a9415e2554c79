"""From a call to the first allreduce: ``horovod.spark.run`` and ``RayExecutor``, two processes.

The peers are what every job on such an engine needs: a Spark barrier stage with two empty tasks,
and two Ray actors until the caller has their answers (the first answer of an actor takes 0.15 s, in
which Ray imports NumPy). They run in turns in one process; a figure is the median over rounds.
Spark's executors are separate JVMs (``local-cluster``). The first start of a session has its own
row, because the engines then start processes that they keep; Spark retries a stage that does not
fit yet after 15 s. Spark keeps the Python processes of its tasks from stage to stage; each job of
ours starts new ones. There is a pause between starts, because Ray ends and starts processes in the
background for a while.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from command_line import make_parser
from report import OURS, Bar, Table, format_time, print_report

_FIRST, _LATER = "first of a session", "in a running session"
_STAGE, _ACTORS = "empty barrier stage", "two actors"
_REST_S = 1.5
Starter = Callable[[], list[float]]


def main() -> int:
    args = make_parser(__doc__, "fewer rounds").parse_args()
    tables = []
    for title, engine, peer, later in (
        ("Spark: start of 2 processes to the first allreduce", _spark, _STAGE, 3.0),
        ("Ray: start of 2 processes to the first allreduce", _ray, _ACTORS, 1.5),
    ):
        bars = Bar(_FIRST, peer, 1.5), Bar(_LATER, peer, later)
        table = Table(title, [OURS, peer], format_time, bars)
        table.rows = {row: {OURS: [], peer: []} for row in (_FIRST, _LATER)}
        with engine():  # the first one also starts Spark's driver
            pass
        for session in range(4 if args.quick else 8):
            with engine() as starters:
                _measure(table, starters, session, 2 if args.quick else 4)
        tables.append(table)
    return print_report(tables, args.json)


def _measure(table: Table, starters: dict[str, Starter], session: int, rounds: int) -> None:
    """The two alternate as the first of a session."""
    names = list(starters) if session % 2 else list(reversed(starters))
    table.rows[_FIRST][names[0]].append(_seconds(starters[names[0]]))
    _seconds(starters[names[1]])
    for turn in range(rounds):
        # Each follows itself as often as the other: an engine has processes left over.
        for name in names if turn % 2 else reversed(names):
            time.sleep(_REST_S)
            table.rows[_LATER][name].append(_seconds(starters[name]))


def _seconds(starter: Starter) -> float:
    """Time until the last process has its result, on the machine's clock."""
    start = time.monotonic()
    return max(starter()) - start


def _first_allreduce() -> float:
    """In a worker."""
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    hvd.allreduce(np.ones(1))
    return time.monotonic()


@contextmanager
def _spark() -> Iterator[dict[str, Starter]]:
    from pyspark.sql import SparkSession

    import horovod.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    builder = builder.config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
    session = builder.getOrCreate()
    context = session.sparkContext

    def empty_stage() -> list[float]:
        tasks = context.parallelize(range(2), 2).barrier()
        tasks.mapPartitions(lambda _: [0]).collect()
        return [time.monotonic()]

    def run() -> list[float]:
        return horovod.spark.run(_first_allreduce, num_proc=2, verbose=0)

    try:
        yield {OURS: run, _STAGE: empty_stage}
    finally:
        session.stop()


@contextmanager
def _ray() -> Iterator[dict[str, Starter]]:
    import ray

    from horovod.ray import RayExecutor

    @ray.remote(num_cpus=1)
    class Empty:
        def answer(self) -> int:
            return 0

    def actors() -> list[float]:
        started = [Empty.remote() for _ in range(2)]
        ray.get([actor.answer.remote() for actor in started])
        end = time.monotonic()
        for actor in started:
            ray.kill(actor)
        return [end]

    def run() -> list[float]:
        executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
        executor.start()
        found: list[float] = executor.run(_first_allreduce)
        executor.shutdown()
        return found

    ray.init(
        address="local",
        num_cpus=8,  # includes actors that are about to end
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        yield {OURS: run, _ACTORS: actors}
    finally:
        ray.shutdown()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
