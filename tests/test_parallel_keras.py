"""Runs the bodies in tests/parallel/keras under our launcher, once for each backend of Keras."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BODIES = Path(__file__).parent / "parallel" / "keras"
PACKAGES = {"tensorflow": "tensorflow", "torch": "torch", "jax": "jax"}


def backends() -> list[str]:
    """The installed backends; Keras 2 has one."""
    if importlib.util.find_spec("keras") is None:
        return []
    from importlib.metadata import version

    known = PACKAGES if int(version("keras").split(".")[0]) >= 3 else {"tensorflow"}
    return [name for name in known if importlib.util.find_spec(PACKAGES[name]) is not None]


@pytest.mark.timeout(700)
@pytest.mark.parametrize("backend", backends())
def test_on_two_ranks(backend):
    # Keras's files do not depend on the backend.
    but_not = [] if backend == "tensorflow" else [f"--ignore={BODIES / 'test_saving.py'}"]
    run(backend, 2, [str(BODIES), *but_not])


@pytest.mark.timeout(700)
@pytest.mark.skipif("jax" not in backends(), reason="JAX or Keras 3 is not installed")
def test_callbacks_of_jax_on_more_ranks_than_cores():
    names = ["test_several_steps_per_execution", "test_broadcast_after_the_first_batch and sgd"]
    run("jax", 4, [str(BODIES / "test_fit.py"), "-k", " or ".join(names)])


def run(backend: str, ranks: int, bodies: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *bodies]
    launcher = [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks)]
    # Ranks would share an accelerator; the engine reads host memory.
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_PLATFORMS": "cpu",
    }
    job = subprocess.run(
        launcher + command, capture_output=True, text=True, timeout=680, env=environment
    )
    assert job.returncode == 0, job.stdout[-20000:] + job.stderr[-5000:]
    passed = re.findall(r"\[(\d+)\]<stdout>:(\d+) passed", job.stdout)
    assert sorted(int(rank) for rank, _ in passed) == list(range(ranks))
    assert len({count for _, count in passed}) == 1
