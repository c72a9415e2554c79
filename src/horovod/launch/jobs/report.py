"""The file of ``--report``: what the launcher knows of a job, and its end, when it is written.

Whether the file can be written is found out before the job begins; it appears whole, at the end.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from horovod.core.base.own_files import follow, replacing
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.trace.folders import JOB_ID

if TYPE_CHECKING:
    pass

__all__ = ["REPORT_ENVIRONMENT", "JobReport", "check_report", "new_report", "say_last"]

# For the workers: a launcher collects what they tell.
REPORT_ENVIRONMENT = {"_HOROVOD_REPORT": "1"}
_MOST_SAID = 200


def check_report(path: Path) -> Path:
    """``path`` as an absolute one, if a file can be written there.

    Raises:
        OSError: it cannot, is a folder, or is reached over another user's link.
    """
    try:
        path = follow(path)  # what a link leads to is replaced, not the link
    except OSError as error:
        raise OSError(f"--report {error}") from None
    if path.is_dir():
        raise IsADirectoryError(f"--report {path}: this is a folder; expected a file's name")
    if path.exists() and not path.is_file():
        raise OSError(f"--report {path}: expected a regular file to replace, or none")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OSError(f"--report {path}: cannot be written: {error.strerror}") from None
    return path


def say_last(text: str) -> None:
    """One line on standard error, when the job's own consoles have been closed."""
    with suppress(OSError):
        print(f"horovodrun: {text}", file=sys.stderr, flush=True)


class JobReport:
    """Begins with the job. ``note`` is for what is said meanwhile, shown to the user or not."""

    def __init__(self, path: Path, command: Sequence[str], job_id: str = "") -> None:
        self._path = path
        self._command = command
        self._job_id = job_id
        self._begin_s = time.time()
        self._said: list[tuple[float, str]] = []

    def note(self, text: str) -> None:
        """Something has happened; the first and the last lines are kept."""
        if self._said and text.startswith(self._said[-1][1]):
            self._said.pop()  # the same in more words
        self._said.append((time.time(), text))
        if len(self._said) > _MOST_SAID:
            del self._said[_MOST_SAID // 2]

    def write(
        self, told: Mapping[str, bytes], outcome: JobOutcome, say: Callable[[str], None]
    ) -> None:
        """Write it. ``told`` is what processes have told; ``say`` hears of what does not work."""
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
            said=self._said,
        )
        report, problems = collected(job, told.values())
        for problem in problems:
            say(f"--report: the numbers of a process are left out: {problem}")
        try:
            with replacing(self._path, 0o666, keeps_mode=True) as file:
                file.write(page(report).encode(errors="replace"))
        except OSError as error:
            say(f"--report {self._path}: cannot be written: {error.strerror or error}")


def new_report(plan: JobPlan) -> JobReport | None:
    """The report of a job that begins, if it is to have one."""
    if plan.report is None:
        return None
    return JobReport(plan.report, plan.command, plan.extra_environment.get(JOB_ID, ""))
