"""Runs the bodies in tests/parallel under our launcher.

Torch's and NumPy's run on one rank and on three, which also shows what two would. Those of other
bindings run on two, and a part of them on one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

PARALLEL = Path(__file__).parent / "parallel"
TENSORFLOW = PARALLEL / "tensorflow"
JAX = PARALLEL / "jax"
MXNET = PARALLEL / "mxnet"
NUMPY_AND_TORCH = [PARALLEL, *(f"--ignore={folder}" for folder in (TENSORFLOW, JAX, MXNET))]
# Enough to see that Python operations do what the native ones do, and that one rank is a world.
BOTH_WAYS = "not (int or bool or float64 or factors)"

needs_tensorflow = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)
needs_mxnet = pytest.mark.skipif(find_spec("mxnet") is None, reason="MXNet is not installed")
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")


def run_on(ranks: int, *arguments: str | Path, **environment: str) -> None:
    """All ranks must pass, and the same number of tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks)]
    job = subprocess.run(
        [*launcher, *command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=580,
        env={**os.environ, **environment},
    )
    assert job.returncode == 0, job.stdout[-20000:] + job.stderr[-5000:]
    passed = re.findall(r"\[(\d+)\]<stdout>:(\d+) passed", job.stdout)
    assert sorted(int(rank) for rank, _ in passed) == list(range(ranks))
    assert len({count for _, count in passed}) == 1
    print(f"{ranks} ranks: {passed[0][1]} passed on each")


def test_on_one_rank():
    """Two jobs at a time: one rank has little to do for a second core."""
    bindings = {"jax": JAX, "tensorflow": TENSORFLOW}
    installed = [[folder, "-k", BOTH_WAYS] for name, folder in bindings.items() if find_spec(name)]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(run_on, 1, *bodies) for bodies in [*installed, NUMPY_AND_TORCH]]
    for job in jobs:
        job.result()


def test_on_three_ranks():
    run_on(3, *NUMPY_AND_TORCH)


@needs_tensorflow
def test_tensorflow_on_two_ranks():
    run_on(2, TENSORFLOW, f"--ignore={TENSORFLOW / 'test_xla.py'}")


@needs_tensorflow
def test_tensorflow_with_xla():
    """A job of its own, so that the oldest TensorFlow, too, has it on two ranks."""
    run_on(2, TENSORFLOW / "test_xla.py")


@needs_tensorflow
def test_tensorflow_without_native_ops():
    tests = ["reductions", "exchanges", "errors", "join", "graphs"]
    files = [TENSORFLOW / f"test_{name}.py" for name in tests]
    run_on(2, *files, "-k", BOTH_WAYS, HOROVOD_TENSORFLOW_NATIVE_OPS="0")


@needs_jax
def test_jax_on_two_ranks():
    run_on(2, JAX)


@needs_jax
def test_jax_without_native_ops():
    files = [JAX / f"test_{name}.py" for name in ("reductions", "exchanges", "errors")]
    run_on(2, *files, "-k", BOTH_WAYS, HOROVOD_JAX_NATIVE_OPS="0")


@needs_mxnet
@pytest.mark.parametrize("ranks", [1, 2])
def test_mxnet_on_ranks(ranks):
    run_on(ranks, MXNET)
