"""What a job leaves: the file of ``--report``, its id, and its outcome beside its recordings.

The launcher checks before the job begins that the report can be written. The file appears whole, at
the end. Recordings of a job lie under its id, by which ``horovodrun --doctor`` finds them. Every
worker has the id in ``HOROVOD_JOB_ID``. It comes from ``--job-id``, from the environment, or from
the clock and chance.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.core.base.own_files import OwnFolder, replacing
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.trace.folders import JOB_ID, folder_of, is_marked, job_name
from horovod.trace.outcome import write_outcome

if TYPE_CHECKING:
    from horovod.trace.report.facts import Advice

# Workers with these variables send their numbers to the launcher.
REPORT_ENVIRONMENT = {"_HOROVOD_REPORT": "1"}
_MOST_SAID = 200
# Findings that the page shows otherwise, or that are no news at the end.
_NOT_IN_REPORT = ("exit", "missing", "too-few-steps")


def say_last(text: str) -> None:
    """Print a line on standard error, after the job's own consoles have been closed."""
    with suppress(OSError):
        print(f"horovodrun: {text}", file=sys.stderr, flush=True)


@dataclass(eq=False, repr=False)
class JobReport:
    """The report of a job that begins now. ``note`` takes lines, shown to the user or not."""

    _path: Path
    _command: Sequence[str]
    _job_id: str = ""
    _recordings: Path | None = None

    def __post_init__(self) -> None:
        self._begin_s = time.time()
        self._said: list[tuple[float, str]] = []

    def note(self, text: str) -> None:
        """Keep a line; of many the first and the last ones are kept."""
        if self._said and text.startswith(self._said[-1][1]):
            self._said.pop()  # this line repeats it with more detail
        self._said.append((time.time(), text))
        if len(self._said) > _MOST_SAID:
            del self._said[_MOST_SAID // 2]

    def write(
        self, told: Mapping[str, bytes], outcome: JobOutcome, say: Callable[[str], None]
    ) -> bool:
        """Write it, and return whether that was possible.

        ``told`` has the numbers of processes; ``say`` gets lines about problems.
        """
        # Here, because only reports need them.
        from horovod.trace.report.facts import Job
        from horovod.trace.report.merge import collected
        from horovod.trace.report.page import page

        job = Job(
            command=shlex.join(self._command),
            job_id=self._job_id,
            begin_s=self._begin_s,
            end_s=time.time(),
            status=outcome.status,
            outcome=outcome.text,
            messages=self._said,
            findings=self._findings(outcome),
        )
        report, problems = collected(job, told.values())
        for problem in problems:
            say(f"--report: the numbers of a process are left out: {problem}")
        try:
            with replacing(self._path, 0o666, keeps_mode=True) as file:
                file.write(page(report).encode(errors="replace"))
        except OSError as error:
            say(f"--report {self._path}: cannot be written: {error.strerror or error}")
            return False
        return True

    def _findings(self, outcome: JobOutcome) -> list[Advice] | None:
        """The doctor's findings, from recordings on this machine and from the outcome."""
        from horovod.launch.doctor.examination import examine
        from horovod.launch.doctor.findings import capital
        from horovod.launch.doctor.jobs import NothingFoundError, gather
        from horovod.trace.report.facts import Advice

        with suppress(NothingFoundError, OSError):
            if self._recordings is not None and self._has_recordings(self._recordings):
                evidence = gather(self._recordings, asks=False)
                examination = examine(evidence.worlds, evidence.states, evidence.outcome)
                return [
                    Advice(found.severity.value, found.text, found.advice, found.lines)
                    for found in examination.findings
                    if found.code not in _NOT_IN_REPORT
                ]
        # Nothing of this job is on this machine.
        failed = [failure for failure in outcome.failures[:1] if failure.text]
        return [Advice("problem", capital(each.text), "", each.lines) for each in failed] or None

    def _has_recordings(self, path: Path) -> bool:
        with OwnFolder(path) as folder:
            return _has_recordings_since(self._begin_s, folder)


def new_report(plan: JobPlan, environ: Mapping[str, str]) -> JobReport | None:
    """The report of a job that begins, if it is to have one."""
    if plan.report is None:
        return None
    job_id = plan.extra_environment.get(JOB_ID, "")
    return JobReport(plan.report, plan.command, job_id, _recordings_of(plan, environ))


_RECORDER_DIR = "HOROVOD_RECORDER_DIR"


def new_job_id(now_s: float | None = None) -> str:
    """An id that no other job has: the time, so that users recognise it, and four random digits."""
    return f"{time.strftime('%m%d-%H%M%S', time.localtime(now_s))}-{os.urandom(2).hex()}"


def with_job_id(plan: JobPlan, environ: Mapping[str, str]) -> JobPlan:
    """``plan`` with the id that all its workers get."""
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


def outcome_writer(plan: JobPlan, environ: Mapping[str, str]) -> Callable[[JobOutcome], str]:
    """A function that writes a job's outcome beside its recordings, and returns a line to print.

    After a failure the line says how to read the recordings. Without recordings on this machine
    nothing is written, and the line is empty.
    """
    path = _recordings_of(plan, environ)
    if path is None:
        return lambda outcome: ""
    return partial(_write_outcome, plan.extra_environment[JOB_ID], path, time.time())


def _recordings_of(plan: JobPlan, environ: Mapping[str, str]) -> Path | None:
    """The folder of the job's recordings on this machine; None if there are to be none."""
    variables = {**environ, **plan.extra_environment}
    base = folder_of(variables.get(_RECORDER_DIR, ""))
    if not base or JOB_ID not in plan.extra_environment:
        return None
    return Path(base) / job_name(variables, 0)


def _write_outcome(job_id: str, path: Path, began_s: float, outcome: JobOutcome) -> str:
    try:
        with OwnFolder(path) as folder:
            if not _has_recordings_since(began_s, folder):
                return ""
            write_outcome(folder, outcome.status, outcome.text, outcome.failures)
    except OSError:  # the outcome is a convenience
        return ""
    return f"what every rank did last: horovodrun --doctor {job_id}" if outcome.status else ""


def _has_recordings_since(epoch_s: float, folder: OwnFolder) -> bool:
    if not is_marked(folder):
        return False
    files = (folder.own_file(name) for name in folder.names() if name.endswith(".hvdrec"))
    return any(file is not None and file.st_mtime >= epoch_s - 1 for file in files)
