"""The bodies of ``tests/parallel`` and those in ``bodies``, on ranks of several hosts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from lab import ROOT, Lab

PARALLEL = ROOT / "tests" / "parallel"
BODIES = Path(__file__).with_name("bodies")
# They say what is so on one host.
ONE_HOST = "not test_world_numbers"
SOME_OF_TORCH = ["exchanges", "join", "optimizer", "optimizer_sparse", "sync_batch_norm"]

pytestmark = pytest.mark.timeout(240)


def run_on(lab: Lab, ranks_per_host: Sequence[int], *arguments: object) -> None:
    """All ranks must pass, and the same number of tests."""
    pytest_here = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    job = lab.start(
        ranks_per_host,
        [*pytest_here, "-c", str(ROOT / "pyproject.toml"), *map(str, arguments)],
        environment={
            "RANKS_PER_HOST": ",".join(map(str, ranks_per_host)),
            "HOROVOD_TEST_COARSE": "1",
        },
    )
    outputs = job.check(timeout_s=230)
    passed = [re.search(r"(\d+) passed", output) for output in outputs]
    counts = {match[1] for match in passed if match}
    assert all(passed), job.told()
    assert len(counts) == 1
    print(f"{ranks_per_host}: {counts.pop()} passed on each rank")


@pytest.mark.parametrize(
    "ranks_per_host", [(1, 1), (2, 1), (1, 2), (2, 2), (1, 1, 1), (1, 1, 1, 1)]
)
def test_what_is_special_about_hosts(lab: Lab, ranks_per_host: tuple[int, ...]) -> None:
    run_on(lab, ranks_per_host, BODIES)


@pytest.mark.parametrize("ranks_per_host", [(1, 1), (2, 1)])
def test_numpy(lab: Lab, ranks_per_host: tuple[int, ...]) -> None:
    folder = PARALLEL / "numpy"
    run_on(lab, ranks_per_host, folder, f"--ignore={folder / 'test_worlds.py'}", "-k", ONE_HOST)


@pytest.mark.parametrize("ranks_per_host", [(2, 1)])
def test_torch(lab: Lab, ranks_per_host: tuple[int, ...]) -> None:
    files = [PARALLEL / "torch" / f"test_{name}.py" for name in SOME_OF_TORCH]
    run_on(lab, ranks_per_host, *files)
