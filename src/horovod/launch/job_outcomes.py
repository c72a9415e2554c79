"""How a failed job reads. Pure functions."""

from __future__ import annotations

from textwrap import indent

from horovod.launch.crew import Worker
from horovod.launch.fleet import ranks_of
from horovod.launch.job_plan import JobOutcome
from horovod.launch.processes import describe_exit
from horovod.launch.remote_crew import RemoteCrew

__all__ = ["host_loss", "worker_failure"]

_FAILED = (
    "Horovod detected that one or more processes exited with non-zero status; the others have been "
    "ended. The first was"
)


def worker_failure(first: Worker) -> JobOutcome:
    """The outcome when a worker failed; the last lines have the form that tools look for."""
    text = (
        f"{_FAILED} {first.name}, which {describe_exit(first.exit_code or 0)}:\n"
        f"Process name: {first.slot.rank}\n"
        f"Exit code: {first.exit_code}\n"
    )
    return JobOutcome(1, text, first.slot, first.pid, first.exit_code or 0)


def host_loss(crew: RemoteCrew) -> JobOutcome:
    """The outcome when a host was lost with all its workers."""
    lines = indent(crew.last_lines, "  | ")
    text = (
        f"{_FAILED} the connection to {crew.hostname} ({ranks_of(crew)}), which ended: "
        f"{crew.problem}\n" + (f"{lines}\n" if lines else "") + f"Process name: {crew.ranks[0]}\n"
        f"Exit code: {crew.child.exit_code}\n"
    )
    return JobOutcome(1, text, has_lost_host=True)
