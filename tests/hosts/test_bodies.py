"""The bodies of ``tests/parallel`` and those in ``bodies``, on ranks of several hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from body_runs import PARALLEL, run_bodies
from lab import Lab

BODIES = Path(__file__).with_name("bodies")
# It is for one host.
ONE_HOST = "not test_world_numbers"
SOME_OF_TORCH = [
    *("exchanges", "join", "optimizer", "optimizer_sharded", "optimizer_sparse", "sync_batch_norm")
]
SHAPES = [(1, 1), (1, 2), (2, 2), (1, 1, 1, 1)]


@pytest.mark.parametrize("ranks_per_host", SHAPES, ids=lambda shape: "+".join(map(str, shape)))
def test_what_is_special_about_hosts(lab: Lab, ranks_per_host: tuple[int, ...]) -> None:
    run_bodies(lab, ranks_per_host, BODIES)


def test_numpy(lab: Lab) -> None:
    run_bodies(lab, (2, 1), PARALLEL / "numpy", "-k", ONE_HOST)


def test_torch(lab: Lab) -> None:
    files = [PARALLEL / "torch" / f"test_{name}.py" for name in SOME_OF_TORCH]
    run_bodies(lab, (2, 1), *files)
