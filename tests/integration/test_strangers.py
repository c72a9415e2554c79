"""Another user of the machine floods a job with connections: that takes time, and nothing else."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import LAUNCHER, default_signals

WORKERS = Path(__file__).with_name("workers")
LIMIT = 512

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("no_child_is_left"),
    pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root"),
]


@contextlib.contextmanager
def flood(processes: int, most: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of nobody that connect wherever root begins to listen, for a minute at most."""
    words = [sys.executable, str(WORKERS / "flood.py"), "60", str(most)]
    with contextlib.ExitStack() as running:
        started = [
            running.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            for _ in range(processes)
        ]
        try:
            for each in started:
                assert each.stdout
                assert each.stdout.readline() == b"ready\n"
            yield started
        finally:
            for each in started:
                each.terminate()


def run(ranks: int, script: str, hard_limit: int | None = None) -> tuple[int, str, str]:
    """Of a job of ``script``, whose launcher and ranks may have so many descriptors."""

    def prepare() -> None:
        default_signals()
        if hard_limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))

    job = subprocess.run(
        [*LAUNCHER, "-np", str(ranks), sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        preexec_fn=prepare,
        env={**os.environ, "HOROVOD_START_TIMEOUT": "120", "OMP_NUM_THREADS": "1"},
    )
    return job.returncode, job.stdout, job.stderr


def test_a_job_starts_while_another_user_floods_its_store() -> None:
    with flood(2, 700):
        status, out, err = run(
            6,
            "import numpy as np\n"
            "import horovod.numpy as hvd\n"
            "hvd.init()\n"
            "print('sum', hvd.allreduce(np.ones(1), op=hvd.Sum)[0])\n",
        )
    assert status == 0, err
    assert out.count("sum 6.0") == 6


def test_a_failure_is_named_while_another_user_holds_connections() -> None:
    """More of them than the launcher may have descriptors."""
    with flood(1, 4 * LIMIT):
        status, out, err = run(
            2,
            "import os, signal\n"
            "import horovod.numpy as hvd\n"
            "hvd.init()\n"
            "count = 0\n"
            f"while count < {LIMIT // 8}:\n"
            "    count = len(os.listdir(f'/proc/{os.getppid()}/fd'))\n"
            "print('open', count, flush=True)\n"
            "hvd.barrier()\n"
            "if hvd.rank() == 1:\n"
            "    raise SystemExit(3)\n"
            "signal.pause()\n",
            hard_limit=LIMIT,
        )
    assert status == 1
    assert out.count("open") == 2
    assert "rank 1 on localhost" in err
    assert "exited with code 3" in err
    assert "Exit code: 3" in err
    assert "Traceback" not in err


def test_workers_have_the_limits_of_who_started_the_job() -> None:
    def prepare() -> None:
        default_signals()
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))

    words = [*LAUNCHER, "-np", "1", "sh", "-c", "ulimit -Sn; ulimit -Hn"]
    job = subprocess.run(words, capture_output=True, text=True, timeout=60, preexec_fn=prepare)
    assert [line.rpartition(":")[2] for line in job.stdout.split()] == ["300", "400"]
