"""Shared by the parallel MXNet tests: the fewest threads that MXNet can have, its arrays."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest

# With one thread each, whoever blocks one blocks MXNet.
os.environ["MXNET_CPU_WORKER_NTHREADS"] = "1"
os.environ["MXNET_CPU_PRIORITY_NTHREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

if find_spec("mxnet") is not None:
    with warnings.catch_warnings():  # it is older than the NumPy that it works with
        warnings.simplefilter("ignore")
        import mxnet  # noqa: F401


@pytest.fixture(params=["nd", "np"])
def make(request) -> Iterator[object]:
    """Makes an array of MXNet from one of NumPy: an NDArray, or one of ``mx.np``."""
    import mxnet as mx

    if request.param == "nd":
        yield lambda array: mx.nd.array(array, dtype=array.dtype)
        return
    with ExitStack() as modes:
        modes.enter_context(mx.util.np_shape(True))
        modes.enter_context(mx.util.np_array(True))
        yield lambda array: mx.np.array(array, dtype=array.dtype)


@pytest.fixture
def several_ranks():
    """For what needs somebody to disagree with, or to wait for."""
    import horovod.mxnet as hvd

    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
