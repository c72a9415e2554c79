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
from collections.abc import Callable
from typing import BinaryIO, NoReturn

from horovod.core.base import threads
from horovod.launch.embedded.agent_news import AgentUpdates
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.launch.workers.processes import open_standard_files, take_stdin

ELASTIC = "elastic"


def main() -> NoReturn:
    """Run the job on standard input; exits with the launcher's status.

    Standard input has the plan and the descriptor for the pickled outcome. Messages of an
    ``AgentDirectory`` follow, if the job has embedded agents. The argument, ``ELASTIC`` or none,
    says beforehand which kind of job it will be.
    """
    # The caller may ignore or block signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    open_standard_files()  # before another file gets one of their numbers
    lifeline = os.fdopen(take_stdin(), "rb")  # rank 0 must not read it
    run = _runner(is_elastic=ELASTIC in sys.argv[1:])
    try:
        plan, report_fd = pickle.load(lifeline)
    except EOFError:  # the caller has died before it had sent all
        sys.exit(1)
    for fd in (*(plan.call.descriptors if plan.call else ()), report_fd):
        os.set_inheritable(fd, False)
    news = AgentUpdates() if plan.elastic and plan.elastic.has_embedded_agents else None
    watcher = threading.Thread(
        target=_end_with_caller, args=(lifeline, news), name="horovod-lifeline", daemon=True
    )
    try:
        threads.start(watcher)
        outcome = run(plan, news)
    except OSError as error:  # no descriptors or threads left, a log that cannot be written
        outcome = JobOutcome(1, f"the launcher cannot start them: {error}")
    with open(report_fd, "wb", closefd=False) as report:
        pickle.dump(outcome, report)
    sys.exit(outcome.status)


def _runner(*, is_elastic: bool) -> Callable[[JobPlan, AgentUpdates | None], JobOutcome]:
    """What runs a plan; imported while the caller still prepares the plan."""
    # A process needs only one of the two.
    if is_elastic:
        from horovod.launch.elastic.driver import run_elastic_job

        return lambda plan, news: run_elastic_job(plan, os.environ, news)
    from horovod.launch.jobs.fixed import run_job

    return lambda plan, _: run_job(plan, os.environ)


def _end_with_caller(lifeline: BinaryIO, news: AgentUpdates | None) -> None:
    if news is not None:
        news.listen(lifeline)
    while lifeline.read(4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
