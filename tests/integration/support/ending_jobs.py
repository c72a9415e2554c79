"""Jobs of two ranks: rank 1 ends in some way, rank 0 reports its error."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from launching import run

WORKERS = Path(__file__).parents[1] / "workers"
LIMIT_S = 200  # for a loaded machine; less than a run of the launcher may take
# How rank 1 ends, and the text of rank 0's error.
KILLED = ("killed", r"rank 1 \(pid \d+ on localhost\) died")
ENDINGS = [
    KILLED,
    ("leaves", r"rank 1 \(pid \d+ on localhost\) has shut down"),
    ("stays away", r"Missing ranks: 1"),
]


def report_of(script: str, how: str, pattern: str, **settings: str) -> re.Match[str]:
    """The line of rank 0 that matches; one rank may trace or compile seconds longer."""
    settings = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10", **settings}
    _, out, err = run(
        *("-np", "2", sys.executable, str(WORKERS / script), how), env={**os.environ, **settings}
    )
    found = re.search(rf"\[0\]<stdout>:{pattern}", out)
    assert found, out + err
    return found
