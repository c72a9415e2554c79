"""The id of a job: what its recordings lie under, and by which ``horovodrun --doctor`` finds it.

Every worker has it in ``HOROVOD_JOB_ID``. It comes from ``--job-id``, from the environment, or from
the clock and chance.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from horovod.launch.elastic.plan import ElasticPlan
from horovod.launch.job_plan import JobPlan
from horovod.trace.folders import JOB_ID, folder_of, job_name

__all__ = ["new_job_id", "parting_words", "with_job_id"]

_Plan = TypeVar("_Plan", JobPlan, ElasticPlan)
_RECORDER_DIR = "HOROVOD_RECORDER_DIR"


def new_job_id(now_s: float | None = None) -> str:
    """An id that no other job has: the time, to be recognised, and four digits of chance."""
    return f"{time.strftime('%m%d-%H%M%S', time.localtime(now_s))}-{os.urandom(2).hex()}"


def with_job_id(plan: _Plan, environ: Mapping[str, str]) -> _Plan:
    """``plan`` with an id that all its workers get."""
    if isinstance(plan, ElasticPlan) and plan.job_id:
        job_id = plan.job_id
    elif JOB_ID in plan.extra_environment:
        return plan
    else:
        # A launcher that is itself a worker has the id of its own job.
        is_worker = "HOROVOD_RANK" in environ
        job_id = "" if is_worker else environ.get(JOB_ID, "")
    environment = {**plan.extra_environment, JOB_ID: job_id or new_job_id()}
    return replace(plan, extra_environment=environment)


def parting_words(plan: JobPlan | ElasticPlan, environ: Mapping[str, str]) -> Callable[[], str]:
    """What to say after a job that did not end well: where to look, if there is anything."""
    variables = {**environ, **plan.extra_environment}
    if JOB_ID not in plan.extra_environment:
        return lambda: ""
    folder = folder_of(variables.get(_RECORDER_DIR, ""))
    return partial(_words, variables[JOB_ID], folder, time.time())


def _words(job_id: str, base: str, began_s: float) -> str:
    if not base:
        return ""
    folder = Path(base) / job_name({JOB_ID: job_id}, 0)
    try:
        is_there = any(path.stat().st_mtime >= began_s - 1 for path in folder.glob("*.hvdrec"))
    except OSError:
        is_there = False
    return f"what every rank did last: horovodrun --doctor {job_id}" if is_there else ""
