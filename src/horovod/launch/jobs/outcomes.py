"""How a failed job reads. Pure functions."""

from __future__ import annotations

from textwrap import indent

from horovod.launch.model.job_plan import JobOutcome
from horovod.launch.remote.remote_group import RemoteWorkerGroup
from horovod.launch.remote.remote_hosts import ranks_of
from horovod.launch.workers.processes import describe_exit
from horovod.launch.workers.worker_group import Worker

__all__ = ["failure_text", "host_loss", "worker_failure"]

_FAILED = (
    "Horovod detected that one or more processes exited with non-zero status; the others have been "
    "ended. The first was"
)


def worker_failure(first: Worker) -> JobOutcome:
    """The outcome when a worker failed; the last lines have the form that tools look for."""
    exit_code = first.exit_code or 0
    cause = f"{first.name}, which {describe_exit(exit_code)}"
    text = failure_text(cause, first.rank_info.rank, exit_code)
    return JobOutcome(1, text, first.rank_info, first.pid, exit_code, worker=first.number)


def failure_text(first: str, rank: int, exit_code: int | None) -> str:
    """That workers failed, ``first`` before the others; no exit code: it had to be ended."""
    code = "" if exit_code is None else f"Exit code: {exit_code}\n"
    return f"{_FAILED} {first}:\nProcess name: {rank}\n{code}"


def host_loss(group: RemoteWorkerGroup) -> JobOutcome:
    """The outcome when a host was lost with all its workers."""
    lines = indent(group.last_lines, "  | ")
    text = (
        f"{_FAILED} the connection to {group.hostname} ({ranks_of(group)}), which ended: "
        f"{group.problem}\n" + (f"{lines}\n" if lines else "") + f"Process name: {group.ranks[0]}\n"
        f"Exit code: {group.child.exit_code}\n"
    )
    return JobOutcome(1, text, has_lost_host=True)
