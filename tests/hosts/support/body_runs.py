"""Runs bodies, which are pytest functions for all ranks, on ranks of several hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lab import ROOT, Lab

__all__ = ["PARALLEL", "pytest_words", "run_bodies"]

PARALLEL = ROOT / "tests" / "parallel"
_TIMEOUT_S = 500


def pytest_words(*arguments: object) -> list[str]:
    """Words for Python that run these tests with the project's settings."""
    settings = [f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml")]
    return ["-m", "pytest", "-q", "-p", "no:cacheprovider", *settings, *map(str, arguments)]


def run_bodies(
    lab: Lab,
    ranks_per_host: Sequence[int],
    *arguments: object,
    environment: Mapping[str, str] | None = None,
) -> None:
    """All ranks must pass, and the same number of tests."""
    variables = {
        "RANKS_PER_HOST": ",".join(map(str, ranks_per_host)),
        "HOROVOD_TEST_COARSE": "1",
        **(environment or {}),
    }
    job = lab.start(ranks_per_host, pytest_words(*arguments), environment=variables)
    outputs = job.check(timeout_s=_TIMEOUT_S)
    passed = [re.search(r"(\d+) passed", output) for output in outputs]
    counts = {match[1] for match in passed if match}
    assert all(passed), job.told()
    assert len(counts) == 1
    print(f"{ranks_per_host}: {counts.pop()} passed on each rank")
