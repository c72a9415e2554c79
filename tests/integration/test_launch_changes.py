"""A job in a job loop of the launcher; its workers and hosts join and leave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fake_hosts import FakeHosts

JOB = Path(__file__).parent / "workers" / "changing_job.py"
ROUNDS = 12

pytestmark = pytest.mark.usefixtures("no_child_is_left")


def test_workers_are_replaced_and_hosts_appear_and_disappear(fake: FakeHosts) -> None:
    done = subprocess.run(
        [sys.executable, str(JOB), str(ROUNDS)],
        env=fake.environ,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.stderr.splitlines() == [
        "horovodrun: host-a is there",
        "horovodrun: kept for the replaced: False",
        "horovodrun: host-b is there",
        "horovodrun: lost ['ssh was ended by SIGKILL']",
        "horovodrun: host-a has left with 0 workers running",
        "horovodrun: a child exited with [5]",
        "horovodrun: enough",
    ]
    assert done.returncode == 3
    lines = [f"[{100 + number}]<stdout>:number {number}" for number in range(2 * ROUNDS + 3)]
    # The last three may have been ended before they printed anything.
    assert set(lines[: 2 * ROUNDS]) <= set(done.stdout.splitlines()) <= set(lines)
