"""Starting a launcher as a child of this process and hearing how its job ended.

The child is ``supervisor.py``; it has the plan from standard input, which stays open as long as
the job is wanted.
"""

from __future__ import annotations

import pickle
import subprocess
from typing import BinaryIO

from horovod.launch.job_plan import JobOutcome
from horovod.launch.processes import describe_exit
from horovod.launch.python_words import python_words
from horovod.launch.supervisor import Assignment

__all__ = ["python_words", "read_outcome", "send_assignment"]


def send_assignment(process: subprocess.Popen[bytes], assignment: Assignment) -> None:
    """The plan. Standard input stays open: its end would end the job."""
    assert process.stdin is not None
    rest = memoryview(pickle.dumps(assignment))
    try:
        while rest:
            rest = rest[process.stdin.write(rest) :]
    except BrokenPipeError:
        return  # it is dead; what it has not reported says so


def read_outcome(report: BinaryIO, exit_code: int) -> JobOutcome:
    """What a supervisor that exited with ``exit_code`` has left in ``report``."""
    report.seek(0)
    data = report.read()
    if data:
        outcome: JobOutcome = pickle.loads(data)
        return outcome
    return JobOutcome(1, f"the launcher {describe_exit(exit_code)} before its job was over.")
