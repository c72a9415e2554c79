"""Elastic jobs started by a user: workers die and join, the others continue."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elastic_jobs import Job, counts
from launching import TIMEOUT_S, run

COOLDOWN = ["--blacklist-cooldown-range", "1", "2"]

pytestmark = [pytest.mark.timeout(TIMEOUT_S), pytest.mark.usefixtures("no_child_is_left")]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def new_job(*options: str) -> Job:
        started.append(Job(tmp_path, *options))
        return started[-1]

    yield new_job
    for job in started:
        job.process.kill()
        job.process.communicate()


def test_a_slow_new_worker_does_not_delay_the_others(
    jobs: Callable[..., Job], tmp_path: Path
) -> None:
    """On one machine: the slot of the dead worker is blacklisted, the others continue."""
    job = jobs("-np", "3", "--min-np", "2", "--no-quiet", *COOLDOWN)
    job.watch(0, lambda history: counts(history, 3) > 3)
    job.line("started rank 2")
    os.mkfifo(tmp_path / "hold")
    os.kill(job.pids[2], signal.SIGKILL)
    job.line(r"its slot is blacklisted for \d+ s")
    job.line("world 2 has 2 workers")
    # The next one has called ``init`` and is slow.
    assert job.watch(3, bool) == ["seen 2 3"]
    before = counts(job.history(0), 2)
    job.watch(0, lambda history: counts(history, 2) > before + 20)
    (tmp_path / "hold").write_text("now\n")
    job.line("world 3 has 3 workers")
    # Rank 0 is the survivor with the newest commit, which is worker 0 or 1.
    resets = ("reset 0 3", "reset 1 3")
    job.watch(0, lambda history: sum(map(history.count, resets)) == 1 and counts(history, 3) > 10)
    joined = job.watch(3, lambda history: counts(history, 3) > 3)
    assert joined[1] == "refused"
    assert re.fullmatch(r"reset \d 3", joined[2])  # its numbers were right, too
    status, output = job.end()
    assert status == 0, output
    assert "horovodrun: 3 ranks finished in" in output  # also if one has ended before the others
    results = re.findall(r"\[(\d)\]<stdout>:counted (\d+)", output)
    assert sorted(rank for rank, _ in results) == ["0", "1", "2"]
    assert len({total for _, total in results}) == 1


def test_a_spare_takes_over(jobs: Callable[..., Job]) -> None:
    job = jobs(
        "-np", "2", "--max-np", "2", "--min-np", "2", "-H", "127.0.0.1:1,127.0.0.2:1,localhost:1"
    )
    spare = job.watch(2, bool)
    assert spare == ["seen 2 3"]
    job.watch(0, lambda history: counts(history, 2) > 3)
    job.line("started rank 2")
    os.kill(job.pids[0], signal.SIGKILL)
    job.line("world 2 has 2 workers on 127.0.0.2, localhost")
    history = job.watch(2, lambda history: counts(history, 2) > 3)
    assert history[1] == "reset 1 2"
    first = int(re.findall(r"batch (\d+)", "\n".join(history))[0])
    assert first > 3, "it has begun anew"
    status, output = job.end()
    assert status == 0, output


def test_the_reset_limit(jobs: Callable[..., Job]) -> None:
    job = jobs("-np", "2", "--min-np", "1", "--reset-limit", "0", *COOLDOWN)
    job.watch(0, lambda history: counts(history, 2) > 3)
    job.line("started rank 1")
    os.kill(job.pids[1], signal.SIGKILL)
    status, output = job.end()
    assert status == 1
    assert "number of resets during elastic job exceeded limit: 0" in output


def test_too_few_workers_end_the_job_after_a_while(jobs: Callable[..., Job]) -> None:
    options = ["-np", "2", "--min-np", "2", "--elastic-timeout", "10"]
    job = jobs(*options, "-H", "127.0.0.1:1,127.0.0.2:1")
    job.watch(0, lambda history: counts(history, 2) > 3)
    job.line("started rank 1")
    os.kill(job.pids[1], signal.SIGKILL)
    job.line("waiting: 2 are needed, ")
    out, _ = job.process.communicate(timeout=TIMEOUT_S)
    text = out.decode()
    assert job.process.returncode == 1
    assert "Horovod detected that one or more processes exited with non-zero status" in text
    assert "worker 0" in text, text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("-np", "2", "--min-np", "1"), "fewer than 2 hosts"),
        (("-np", "2", "--min-np", "3"), "min-np is 3"),
        (("-np", "2", "--min-np", "1", "--job-id", "a/b"), "'a/b': expected a name"),
        (("-np", "2", "--host-discovery-script", "false"), "the host discovery script false fails"),
        (("-np", "2", "--min-np", "1", *COOLDOWN, "--mpi"), "--mpi and an elastic job"),
    ],
)
def test_what_cannot_be(arguments: tuple[str, ...], text: str) -> None:
    status, out, err = run(*arguments, "true")
    assert status in (1, 2)
    assert out == ""
    assert text in err


def test_a_command_that_cannot_be_found() -> None:
    status, _, err = run("-np", "2", "--min-np", "1", *COOLDOWN, "no-such-command")
    assert status == 127
    assert "command not found in PATH" in err
    assert "no-such-command" in err


def test_a_worker_that_cannot_run_an_engine_ends() -> None:
    """It does not ask for another world; a limit of threads may be the reason."""
    program = (
        "import os, numpy, horovod.numpy as hvd\n"
        "from horovod.core import assembly\n"
        "def refuse(config):\n"
        "    raise RuntimeError('Resource temporarily unavailable')\n"
        "if os.environ['HOROVOD_RANK'] == '1':\n"
        "    assembly._engine_class = refuse\n"
        "hvd.init()\n"
        "hvd.allreduce(numpy.ones(3), name='x')\n"
    )
    options = ("-np", "2", "--min-np", "2", "--host-discovery-script", "echo localhost:2")
    status, _, errors = run(*options, sys.executable, "-c", program)
    assert status == 1
    assert "worker 1 (rank 1, localhost) exited with code 1" in errors
    assert "initialization failed: Resource temporarily unavailable" in errors
