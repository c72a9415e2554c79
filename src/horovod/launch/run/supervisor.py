"""The launcher's process between ``horovod.run`` and its workers.

The launcher takes over signals, adopts orphans and reaps every child, which it must not do in a
notebook, a test runner or a server, nor beside another launcher. So the caller starts it as one
child, sends the plan to its standard input and waits. Standard input stays open as long as the
caller wants the job: when it closes, also because the caller died, the job ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from horovod.launch.calls.call import CallFiles
from horovod.launch.embedded.agent_news import AgentUpdates
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.launch.workers.processes import take_stdin

ELASTIC = "elastic"


@dataclass(frozen=True)
class Assignment:
    """The caller's job; the outcome is pickled into ``report_fd``."""

    plan: JobPlan
    files: CallFiles | None
    report_fd: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that the supervisor inherits."""
        if self.files is None:
            return (self.report_fd,)
        return (*self.files.descriptors, self.report_fd)

    @property
    def has_embedded_agents(self) -> bool:
        """Whether messages of an ``AgentDirectory`` follow."""
        return self.plan.elastic is not None and self.plan.elastic.has_embedded_agents


def main() -> NoReturn:
    """Run the job that standard input describes; exits with the launcher's status.

    The argument, ``ELASTIC`` or none, says beforehand which kind of job it will be.
    """
    _forget_signal_settings()
    lifeline = os.fdopen(take_stdin(), "rb")  # rank 0 must not read it
    _load(is_elastic=ELASTIC in sys.argv[1:])
    assignment: Assignment = pickle.load(lifeline)
    for fd in assignment.descriptors:
        os.set_inheritable(fd, False)
    news = AgentUpdates() if assignment.has_embedded_agents else None
    threading.Thread(
        target=_end_with_caller, args=(lifeline, news), name="horovod-lifeline", daemon=True
    ).start()
    try:
        outcome = _run(assignment.plan, news)
    except OSError as error:  # no descriptors left, a log that cannot be written
        outcome = JobOutcome(1, f"the launcher cannot start them: {error}")
    with open(assignment.report_fd, "wb", closefd=False) as report:
        pickle.dump(outcome, report)
    sys.exit(outcome.status)


def _load(*, is_elastic: bool) -> None:
    """Import what ``_run`` needs while the caller still prepares the plan."""
    if is_elastic:
        import horovod.launch.elastic.driver
    else:
        import horovod.launch.jobs.fixed  # noqa: F401


def _run(plan: JobPlan, news: AgentUpdates | None) -> JobOutcome:
    # Of the two, a process needs one.
    if plan.elastic is None:
        from horovod.launch.jobs.fixed import run_job

        return run_job(plan, os.environ)
    from horovod.launch.elastic.driver import run_elastic_job

    return run_elastic_job(plan, os.environ, news)


def _forget_signal_settings() -> None:
    """Undo ignored and blocked signals, which this process inherits from the caller."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_with_caller(lifeline: BinaryIO, news: AgentUpdates | None) -> None:
    if news is not None:
        news.listen(lifeline)
    while lifeline.read(4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
