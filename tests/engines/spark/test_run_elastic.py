"""``horovod.spark.run_elastic``: Spark restarts lost tasks; and the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import spark_workers as workers
from engine_processes import assert_end
from pyspark import SparkContext

import horovod.spark

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "spark.md"


@pytest.mark.parametrize("what", ["worker", "executor"])
def test_a_lost_worker_or_executor_is_replaced(context: SparkContext, what: str) -> None:
    found = horovod.spark.run_elastic(workers.count, (what,), num_proc=2, elastic_timeout=60)
    assert [result[:3] for result in found] == [(0, 2, 20), (1, 2, 20)]
    pids = found[0][3]
    assert len(set(pids)) == 2
    assert_end(pids)


def test_the_job_goes_on_with_less(context: SparkContext) -> None:
    """Spark has room for two of three tasks."""
    with pytest.warns(DeprecationWarning, match="min_np is deprecated; use min_num_proc"):
        found = horovod.spark.run_elastic(
            workers.count, ("worker",), num_proc=2, min_np=1, max_num_proc=3, verbose=0
        )
    assert [result[0] for result in found] == list(range(len(found)))
    assert {result[2] for result in found} == {20}


def test_spark_gives_up(context: SparkContext) -> None:
    with pytest.raises(RuntimeError, match="Spark does not restart it"):
        horovod.spark.run_elastic(
            workers.count, ("worker",), {"is_once": False}, num_proc=2, verbose=0
        )


@pytest.mark.parametrize(
    ("number", "results"), [(0, "[(0, 2, 0.02), (1, 2"), (1, "[(0, 3), (1, 3)]")]
)
def test_the_documentation(
    context: SparkContext, capsys: pytest.CaptureFixture[str], number: int, results: str
) -> None:
    code = re.findall(r"(?ms)^```python\n(.*?)^```", DOCUMENTATION.read_text())[number]
    exec(compile(code, "spark.md", "exec"), {"__name__": "__main__"})
    assert results in capsys.readouterr().out


def test_arguments_that_make_no_sense(context: SparkContext) -> None:
    with pytest.raises(ValueError, match="min_num_proc=3: expected 1 to 2"):
        horovod.spark.run_elastic(print, num_proc=2, min_num_proc=3)
    with pytest.raises(ValueError, match="max_num_proc=1: expected 2"):
        horovod.spark.run_elastic(print, num_proc=2, max_num_proc=1)
    with pytest.raises(ValueError, match="reset_limit=-1"):
        horovod.spark.run_elastic(print, num_proc=2, reset_limit=-1)
    with pytest.raises(TimeoutError, match=r"[0-2] of 3 have started"):
        horovod.spark.run_elastic(print, num_proc=3, start_timeout=2)
