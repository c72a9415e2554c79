"""A driver outside the cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("client_job.py")


def test_static_and_elastic_jobs_from_a_client(nodes: Any, tmp_path: Path) -> None:
    (tmp_path / "of_the_client.py").write_text("SUMMAND = 1.0\n")
    words = [sys.executable, SCRIPT, nodes.client_url, tmp_path]
    found = subprocess.run(words, capture_output=True, text=True, timeout=500)
    assert found.returncode == 0, found.stderr
    lines = [json.loads(line) for line in found.stdout.splitlines() if line.startswith("[[")]
    assert lines == [[[3.0, 3.0], [0, 1], True]] * 2
