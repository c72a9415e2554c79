"""The package exports what the documentation lists, and says what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import horovod.mxnet as hvd
from horovod.mxnet import collectives, compression, functions, mpi_ops, optimizer, trainer

DOCUMENTED = """
Adasum Average Compression DistributedOptimizer DistributedTrainer Max Min ProcessSet Product Sum
add_process_set allgather allgather_object allreduce allreduce_ alltoall broadcast broadcast_
broadcast_object broadcast_parameters ccl_built cross_rank cross_size cuda_built ddl_built
dump_recorder global_process_set gloo_built gloo_enabled grouped_allgather grouped_allreduce
grouped_allreduce_ grouped_reducescatter init is_initialized local_rank local_size log_metrics
metrics mpi_built mpi_enabled mpi_threads_supported nccl_built rank reducescatter
remove_process_set rocm_built shutdown size start_timeline stop_timeline
"""


def test_all_is_what_is_documented():
    assert sorted(hvd.__all__) == sorted(DOCUMENTED.split())
    for name in hvd.__all__:
        assert hasattr(hvd, name), name
    assert mpi_ops.is_homogeneous


@pytest.mark.parametrize(
    "module", [collectives, compression, functions, mpi_ops, optimizer, trainer]
)
def test_all_lists_existing_names_once(module):
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name)


REASONS = {
    "sys.modules['mxnet'] = None": "pip install 'horovod[mxnet]'",
    "import mxnet; mxnet.__version__ = '2.0.0'": "works with MXNet 1.9; version 2.0.0",
    "import mxnet; mxnet.base._LIB._handle = None": "libmxnet has no MXEnginePushAsyncND",
}


@pytest.mark.parametrize(("change", "reason"), REASONS.items())
def test_what_is_missing_is_named(change, reason):
    script = (
        f"import sys, warnings; warnings.simplefilter('ignore')\n{change}\n"
        "try:\n    import horovod.mxnet\nexcept ImportError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", script]
    job = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    assert reason in job.stdout
