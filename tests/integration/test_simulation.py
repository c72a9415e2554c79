"""``horovodrun --calibrate`` with two processes, and ``--simulate`` from a job that has run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from launching import noted_environment, run

pytestmark = pytest.mark.usefixtures("no_child_is_left")

WORKER = [sys.executable, str(Path(__file__).parent / "workers" / "ailing.py")]


def test_from_what_is_measured_and_recorded_here(tmp_path: Path) -> None:
    environ = noted_environment(tmp_path)
    costs = tmp_path / "costs.json"
    status, out, _ = run("--calibrate", "-o", str(costs), env=environ)
    assert (status, out) == (0, f"horovodrun: wrote {costs}: {_NEXT} {costs}\n")
    measured = json.loads(costs.read_text())["costs"]
    assert measured["byte_s"] > 0
    assert measured["bucket_s"] > 0

    arguments = ("--job-id", "healthy-1", "-np", "2", *WORKER, "healthy")
    assert run(*arguments, env=environ) == (0, "", "")
    words = ("--simulate", "2,8", "--from", "healthy-1", "--costs", str(costs), "--json")
    status, out, err = run(*words, env=environ)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["gradients"] > 1
    assert found["workload"].startswith("healthy-1, ")
    assert all(0 < each["efficiency"] <= 1.01 for each in found["predictions"])


_NEXT = "horovodrun --simulate ... --costs"
