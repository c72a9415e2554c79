"""The examples on the cluster of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "ray"


@pytest.mark.parametrize(
    ("script", "arguments", "text"),
    [
        ("static.py", ["--epochs", "4"], "weights are bitwise equal on 2 worker(s)"),
        (
            "elastic.py",
            ["--epochs", "4", "--min-workers", "2", "--max-workers", "2"],
            "on 2 worker(s)",
        ),
        ("tune.py", ["--rates", "0.1", "--epochs", "3", "--verbose", "0"], "rate 0.1 "),
    ],
)
def test_example(nodes: Any, tmp_path: Path, script: str, arguments: list[str], text: str) -> None:
    words = [sys.executable, EXAMPLES / script, *arguments, "--min-accuracy", "0.85"]
    if script == "tune.py":
        words += ["--storage", tmp_path]
    environment = {**os.environ, "RAY_ADDRESS": nodes.cluster.address}
    found = subprocess.run(words, capture_output=True, text=True, timeout=500, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
    assert text in found.stdout, found.stdout
