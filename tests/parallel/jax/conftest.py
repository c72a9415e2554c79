"""Shared by the parallel JAX tests: two CPU devices or a GPU, 64-bit types, both ways in which code
runs."""

from __future__ import annotations

import os

import pytest

os.environ["JAX_PLATFORMS"] = os.environ.get("HOROVOD_TEST_DEVICE", "cpu")
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # ranks share a GPU
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"  # GPUs would round float32
# Each program runs once or twice: optimising it takes longer than it saves.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
)


@pytest.fixture(params=["eager", "jit"])
def mode(request):
    """Makes a function of arrays run as Python runs it, or compiled."""
    import jax

    return jax.jit if request.param == "jit" else lambda function: function


@pytest.fixture
def several_ranks():
    """For what needs somebody to disagree with, or to be left by."""
    import horovod.jax as hvd

    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
