"""Starts a launcher as a child of this process and reads its outcome.

The child is ``supervisor.py``; it has the plan from standard input, which stays open as long as
the job is wanted.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO

from horovod.launch.calls.call import CallFiles, memory_file
from horovod.launch.embedded.agent_news import AgentDirectory
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.launch.run.supervisor import ELASTIC
from horovod.launch.workers.processes import describe_exit
from horovod.launch.workers.python_command import python_command


def supervise(
    plan: Callable[[], JobPlan],
    *,
    executable: str,
    is_elastic: bool,
    files: CallFiles | None = None,
    environ: Mapping[str, str] | None = None,
    streams: tuple[int | None, int | None] = (None, None),
    agents: AgentDirectory | None = None,
) -> JobOutcome:
    """Run a job in a launcher process; returns its outcome. An exception here ends the job.

    ``plan`` may be slow, so it is called after the process has started. The process inherits
    ``files``, and ``executable`` is its Python. See ``run_call`` for the rest.
    """
    flush_streams()
    with memory_file() as report:
        arguments = [ELASTIC] if is_elastic else []
        with start_launcher(executable, arguments, report, files, environ, streams) as process:
            try:
                send_plan(process, plan(), report)
                if agents is not None:
                    assert process.stdin is not None
                    agents.open(process.stdin)
                process.wait()
            except BaseException:
                end(process)
                raise
            finally:
                if agents is not None:
                    agents.close()
        return read_outcome(report, process.returncode)


def start_launcher(
    executable: str,
    arguments: Sequence[str],
    report: BinaryIO,
    files: CallFiles | None,
    environ: Mapping[str, str] | None,
    streams: tuple[int | None, int | None],
) -> subprocess.Popen[bytes]:
    """The launcher's process, which waits for its plan and will leave the outcome in ``report``.

    SIGTERM asks it to end the job; a second one kills the job's processes.
    """
    return subprocess.Popen(
        python_command(executable, "run.supervisor", arguments),
        stdin=subprocess.PIPE,
        stdout=streams[0],
        stderr=streams[1],
        env=environ,
        bufsize=0,  # closing it has nothing to write
        pass_fds=(*(files.descriptors if files else ()), report.fileno()),
        start_new_session=True,
    )


def flush_streams() -> None:
    """Write the output of this process before that of the workers."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # none, broken, closed
            stream.flush()


def end(process: subprocess.Popen[bytes]) -> None:
    """End the job and wait for it; another Ctrl-C kills the workers."""
    while process.poll() is None:
        process.terminate()
        try:
            process.wait()
        except KeyboardInterrupt:
            continue


def send_plan(process: subprocess.Popen[bytes], plan: JobPlan, report: BinaryIO) -> None:
    """Send the plan. Standard input stays open: its end would end the job."""
    assert process.stdin is not None
    rest = memoryview(pickle.dumps((plan, report.fileno())))
    try:
        while rest:
            rest = rest[process.stdin.write(rest) :]
    except BrokenPipeError:
        return  # it is dead; what it has not reported says so


def read_outcome(report: BinaryIO, exit_code: int) -> JobOutcome:
    """The outcome in ``report`` of a supervisor that exited with ``exit_code``."""
    report.seek(0)
    if data := report.read():
        outcome: JobOutcome = pickle.loads(data)
        return outcome
    return JobOutcome(1, f"the launcher {describe_exit(exit_code)} before its job was over.")
