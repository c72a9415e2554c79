"""Workers get a user's limits, and are found again with hardly a descriptor."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from horovod.launch.workers.processes import descendants, spawn
from horovod.rendezvous.base.descriptors import Reserve, raised_limit


@pytest.fixture
def few() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def family() -> Iterator[tuple[int, list[int]]]:
    """A child with a child in a session of its own, which has one, too; their pids."""
    words = "echo $$; setsid sh -c 'echo $$; sleep 300 & echo $!; wait' & wait"
    with subprocess.Popen(["sh", "-c", words], stdout=subprocess.PIPE) as child:
        assert child.stdout
        pids = [int(child.stdout.readline()) for _ in range(3)]
        try:
            yield child.pid, pids
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_descendants_are_found_without_those_that_are_none_of_ours() -> None:
    before = set(descendants(but_not=()))
    with family() as (child, pids):
        found = descendants(but_not=())
        assert [pid for pid in found if pid not in before] == pids  # parents first
        assert set(descendants(but_not=(child,))) == before
    assert set(descendants(but_not=())) == before


@pytest.mark.usefixtures("few")
def test_descendants_are_found_with_a_reserve_alone() -> None:
    with family() as (_, pids):
        reserve = Reserve()
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        reserve.release()
        assert set(pids) <= set(descendants(but_not=()))
        for fd in taken:
            os.close(fd)


def test_what_ends_a_job_needs_no_other_module() -> None:
    """The launcher's modules are there, and so is all that they need on the way out."""
    program = (
        "import sys, horovod.launch.jobs.fixed, horovod.launch.workers.processes as processes\n"
        "before = set(sys.modules)\n"
        "processes.descendants(but_not=())\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=500)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("open_before", [0, 300])
def test_a_worker_has_the_limits_that_the_launcher_had(open_before: int) -> None:
    words = ["sh", "-c", "read line; ulimit -Sn; ulimit -Hn"]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with raised_limit() as before:
        many = [os.open(os.devnull, os.O_RDONLY) for _ in range(open_before)]
        reader, writer = os.pipe()
        try:
            started = spawn(
                words,
                os.environ,
                inherits_stdin=True,
                descriptors={0: reader},
                file_limit=before,
            )
        finally:
            for fd in (*many, reader, writer):
                os.close(fd)
        with open(started.stdout_fd) as out, open(started.stderr_fd) as err:
            shown = out.read().split()
            assert err.read() == ""
        os.waitpid(started.pid, 0)
    assert shown == ["256", "unlimited" if hard == resource.RLIM_INFINITY else str(hard)]
