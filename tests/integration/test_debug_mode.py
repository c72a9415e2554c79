"""``HOROVOD_DEBUG_COLLECTIVES=1`` in a job: errors that name rank, line and tensor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from launching import run

import horovod

pytestmark = pytest.mark.usefixtures("no_child_is_left")
WORKER = str(Path(__file__).with_name("workers") / "debugged.py")


def test_errors_name_rank_position_and_line() -> None:
    environ = {**os.environ, "HOROVOD_DEBUG_COLLECTIVES": "1", "HOROVOD_DEBUG_INTERVAL": "1"}
    status, out, err = run("-np", "2", sys.executable, WORKER, env=environ)
    assert status == 0, out + err
    for rank in (0, 1):
        text = "\n".join(
            line.partition(":")[2] for line in out.splitlines() if line.startswith(f"[{rank}]")
        )
        assert "allreduce 'gradient': rank 1 (pid " in text
        assert "has nan at [1, 2] (found by HOROVOD_DEBUG_COLLECTIVES)" in text
        assert text.count("This rank submitted it here:") == 2
        assert f'File "{WORKER}", line 12, in submit_uneven' in text
        assert 'hvd.allreduce_(gradient, name="gradient")' in text
        assert f"{Path(horovod.__file__).parent}{os.sep}" not in text
