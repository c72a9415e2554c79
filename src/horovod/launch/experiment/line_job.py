"""One line of one experiment while it runs: a supervisor with all the processes of the job."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Mapping

from horovod.launch.calls.call import memory_file
from horovod.launch.jobs.fixed import JobOutcome, JobPlan
from horovod.launch.run.supervision import read_outcome, send_assignment
from horovod.launch.run.supervisor import Assignment
from horovod.launch.workers.output import Console, Output
from horovod.launch.workers.python_command import python_command

__all__ = ["LineJob"]


class LineJob:
    """A started job. What it prints goes to ``consoles`` with ``prefix`` in front of each line."""

    def __init__(
        self,
        plan: JobPlan,
        environ: Mapping[str, str],
        selector: selectors.BaseSelector,
        prefix: str,
        consoles: tuple[Console, Console],
    ) -> None:
        """Start it; never waits for it. Raises OSError if there can be no more processes."""
        self._report = memory_file()
        self.output = Output(selector)
        readers: list[int] = []
        writers: list[int] = []
        try:
            for _ in consoles:
                reader, writer = os.pipe()
                readers.append(reader)
                writers.append(writer)
            assignment = Assignment(plan, None, self._report.fileno())
            self._process = subprocess.Popen(
                python_command(sys.executable, "run.supervisor"),
                stdin=subprocess.PIPE,
                stdout=writers[0],
                stderr=writers[1],
                bufsize=0,
                env=environ,
                pass_fds=assignment.descriptors,
                start_new_session=True,
            )
        except BaseException:
            self._report.close()
            for fd in readers:
                os.close(fd)
            raise
        finally:
            for fd in writers:
                os.close(fd)
        for fd, console in zip(readers, consoles, strict=True):
            self.output.add(fd, prefix, console)
        send_assignment(self._process, assignment)

    def has_ended(self) -> bool:
        """Whether its processes have; the outcome is there then."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Ask it to end; asked once more, it kills its processes."""
        self._process.terminate()

    def kill(self) -> None:
        """End the launcher itself; its watchdog ends the processes."""
        self._process.kill()
        self._process.wait()

    def finish(self) -> JobOutcome:
        """Its outcome, after all it has printed has been passed on. Only once it has ended."""
        self.output.drain()
        assert self._process.stdin is not None
        self._process.stdin.close()
        with self._report:
            return read_outcome(self._report, self._process.wait())
