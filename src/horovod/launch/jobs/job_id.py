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

from horovod.core.base.own_files import OwnFolder
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.trace.folders import JOB_ID, folder_of, is_marked, job_name
from horovod.trace.outcome import write_outcome

__all__ = ["new_job_id", "parting_words", "with_job_id"]

_RECORDER_DIR = "HOROVOD_RECORDER_DIR"


def new_job_id(now_s: float | None = None) -> str:
    """An id that no other job has: the time, to be recognised, and four digits of chance."""
    return f"{time.strftime('%m%d-%H%M%S', time.localtime(now_s))}-{os.urandom(2).hex()}"


def with_job_id(plan: JobPlan, environ: Mapping[str, str]) -> JobPlan:
    """``plan`` with an id that all its workers get."""
    if plan.elastic is not None and plan.elastic.job_id:
        job_id = plan.elastic.job_id
    elif JOB_ID in plan.extra_environment:
        return plan
    else:
        # A launcher that is itself a worker has the id of its own job.
        is_worker = "HOROVOD_RANK" in environ
        job_id = "" if is_worker else environ.get(JOB_ID, "")
    environment = {**plan.extra_environment, JOB_ID: job_id or new_job_id()}
    return replace(plan, extra_environment=environment)


def parting_words(plan: JobPlan, environ: Mapping[str, str]) -> Callable[[JobOutcome], str]:
    """Leaves the outcome of a job beside its recordings; what to say if it did not end well.

    That is where to look. Where this machine has no recordings there is nothing to leave or say.
    """
    variables = {**environ, **plan.extra_environment}
    base = folder_of(variables.get(_RECORDER_DIR, ""))
    if not base or JOB_ID not in plan.extra_environment:
        return lambda outcome: ""
    return partial(_part, variables[JOB_ID], Path(base), time.time())


def _part(job_id: str, base: Path, began_s: float, outcome: JobOutcome) -> str:
    try:
        with OwnFolder(base / job_name({JOB_ID: job_id}, 0)) as folder:
            if not is_marked(folder) or not _has_recordings_since(began_s - 1, folder):
                return ""
            write_outcome(folder, outcome.status, outcome.text)
    except OSError:  # nobody is worse off
        return ""
    return f"what every rank did last: horovodrun --doctor {job_id}" if outcome.status else ""


def _has_recordings_since(epoch_s: float, folder: OwnFolder) -> bool:
    files = (folder.own_file(name) for name in folder.names() if name.endswith(".hvdrec"))
    return any(file is not None and file.st_mtime >= epoch_s for file in files)
