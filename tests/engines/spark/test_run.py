"""``horovod.spark.run`` on a cluster of two executors."""

from __future__ import annotations

import io
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import spark_workers as workers
from engine_processes import assert_end, pids_in
from pyspark import SparkContext

import horovod.spark


def test_results_by_rank(context: SparkContext) -> None:
    out, err = io.StringIO(), io.StringIO()
    threads = set(threading.enumerate())
    results = horovod.spark.run(
        workers.describe,
        args=("hello",),
        kwargs={"shout": True},
        num_proc=2,
        env={"OF_THE_CALLER": "yes"},
        stdout=out,
        stderr=err,
        nics={"lo"},
        executable=sys.executable,
    )
    assert [result["place"] for result in results] == [(0, 2, 0, 2, 1), (1, 2, 1, 2, 1)]
    for result in results:
        assert result["total"] == 3
        assert result["gpus"] == ["7"]
        assert result["own"] == "yes"
        assert result["folder"]
        assert result["path"]
        assert result["programs"] == os.environ["PATH"]  # the executors', equal to the tests'
    one, other = results
    assert one["executor"] != other["executor"]
    assert one["shared memory"] & other["shared memory"]
    assert sorted(out.getvalue().splitlines()) == ["[0]<stdout>:HELLO", "[1]<stdout>:HELLO"]
    assert err.getvalue() == ""
    assert set(threading.enumerate()) == threads


def test_the_error_of_a_rank(context: SparkContext) -> None:
    with pytest.raises(RuntimeError, match="rank 1 raised KeyError: 'of rank 1'") as caught:
        horovod.spark.run(workers.fail_in_rank_1, num_proc=2, verbose=0)
    assert isinstance(caught.value.__cause__, KeyError)


def test_more_tasks_than_the_cluster_has_room_for(context: SparkContext) -> None:
    with pytest.raises(TimeoutError, match=r"Timed out waiting for Spark tasks to start\. 0 of 3"):
        horovod.spark.run(workers.fail_in_rank_1, num_proc=3, start_timeout=2)


def test_a_cancelled_job_leaves_no_worker(context: SparkContext, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(horovod.spark.run, workers.hang, (str(tmp_path),), num_proc=2)
        pids = pids_in(tmp_path, 2, found.done)
        context.cancelAllJobs()
        with pytest.raises(RuntimeError, match="cancelled"):
            found.result()
    assert_end(pids)


def test_a_lost_executor_ends_the_job(context: SparkContext) -> None:
    with pytest.raises(RuntimeError, match=r"connection to .*/task-. \(rank 1\)"):
        horovod.spark.run(workers.lose_executor_of_rank_1, num_proc=2)


def test_arguments_that_make_no_sense(
    context: SparkContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeError, match="fn=3: expected a function"):
        horovod.spark.run(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_proc=0"):
        horovod.spark.run(print, num_proc=0)
    with pytest.raises(ValueError, match="use_mpi=True"):
        horovod.spark.run(print, use_mpi=True)
    with pytest.raises(TypeError, match="env argument must be a dict"):
        horovod.spark.run(print, env=[])  # type: ignore[arg-type]
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    for run in (horovod.spark.run, horovod.spark.run_elastic):
        with pytest.raises(Exception, match="Could not find an active SparkContext"):
            run(print)
