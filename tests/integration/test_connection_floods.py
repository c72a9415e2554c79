"""Another user of the machine floods a job with connections: the job slows down and succeeds."""

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
    pytest.mark.usefixtures("no_child_is_left"),
    pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root"),
]


@contextlib.contextmanager
def flood(processes: int, most: int, kind: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of user nobody that connect to all new listeners of root, for a minute at most."""
    arguments = [sys.executable, str(WORKERS / "flood.py"), "60", str(most), kind]
    with contextlib.ExitStack() as running:
        started = [
            running.enter_context(subprocess.Popen(arguments, stdout=subprocess.PIPE))
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


@contextlib.contextmanager
def job(
    ranks: int, script: str, *arguments: str, hard_limit: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A job of ``script`` with a limit of descriptors for launcher and ranks."""

    def prepare() -> None:
        default_signals()
        if hard_limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))

    with subprocess.Popen(
        [*LAUNCHER, "-np", str(ranks), sys.executable, "-c", script, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,
        env={**os.environ, "HOROVOD_START_TIMEOUT": "120", "OMP_NUM_THREADS": "1"},
    ) as started:
        try:
            yield started
        finally:
            started.terminate()


SUM = """
import numpy as np
import horovod.numpy as hvd
hvd.init()
print('sum', hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
"""


def test_a_job_starts_while_another_user_floods_its_store() -> None:
    with flood(2, 700, "churn"), job(6, SUM) as started:
        out, err = started.communicate(timeout=500)
    assert started.returncode == 0, err
    assert out.count("sum 6.0") == 6


FAIL = """
import os, signal, sys, time
import horovod.numpy as hvd
hvd.init()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
if hvd.rank() == 1:
    raise SystemExit(3)
signal.pause()
"""


def test_a_failure_is_named_while_another_user_holds_connections(tmp_path: Path) -> None:
    """The flood has made more connections than the launcher may have descriptors."""
    word = tmp_path / "fail"
    with (
        flood(1, 4 * LIMIT, "hold") as (flooding,),
        job(2, FAIL, str(word), hard_limit=LIMIT) as started,
    ):
        assert flooding.stdout
        assert flooding.stdout.readline() == b"held\n"
        word.touch()
        _, err = started.communicate(timeout=500)
    assert started.returncode == 1
    assert "rank 1 on localhost" in err
    assert "exited with code 3" in err
    assert "Exit code: 3" in err
    assert "Traceback" not in err


def test_workers_have_the_limits_of_the_user() -> None:
    def prepare() -> None:
        default_signals()
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))

    arguments = [*LAUNCHER, "-np", "1", "sh", "-c", "ulimit -Sn; ulimit -Hn"]
    shown = subprocess.run(
        arguments, capture_output=True, text=True, timeout=500, preexec_fn=prepare
    )
    assert [line.rpartition(":")[2] for line in shown.stdout.split()] == ["300", "400"]
