"""The package exports what the documentation lists, and imports nothing slow for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import horovod.jax as hvd
from horovod.jax import collectives, compression, elastic, functions, optimizer

DOCUMENTED = """
Adasum Average Compression DiLoCo DistributedOptimizer HorovodInternalError LocalSGD Max Min
ProcessSet Product Sum
add_process_set allgather allgather_object allreduce alltoall barrier broadcast broadcast_object
broadcast_parameters ccl_built cross_rank cross_size cuda_built ddl_built dump_recorder elastic
global_process_set gloo_built gloo_enabled grouped_allgather grouped_allreduce
grouped_reducescatter init is_homogeneous is_initialized join local_rank local_size log_metrics
metrics mpi_built mpi_enabled mpi_threads_supported nccl_built rank reducescatter remove_process_set
rocm_built shard_optimizer_state shutdown size start_timeline stop_timeline whole_optimizer_state
"""


def test_all_is_what_is_documented():
    assert sorted(hvd.__all__) == sorted(DOCUMENTED.split())
    for name in hvd.__all__:
        assert hasattr(hvd, name), name


@pytest.mark.parametrize("module", [collectives, compression, elastic, functions, optimizer])
def test_all_lists_existing_names_once(module):
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name)


def run(script: str) -> str:
    command = [sys.executable, "-c", script]
    job = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    return job.stdout


def test_import_brings_nothing_slow_and_starts_nothing():
    added = run(
        "import sys, jax, jax.numpy, jax.experimental\nbefore = set(sys.modules)\n"
        "import horovod.jax\nfrom jax._src import xla_bridge\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})\n"
        "assert not xla_bridge.backends_are_initialized()"
    )
    assert not {"optax", "torch", "tensorflow", "keras", "flax"} & set(added.split())


@pytest.mark.parametrize(("missing", "use"), [("jax", ""), ("optax", ".DistributedOptimizer(1)")])
def test_what_is_missing_is_named(missing, use):
    text = run(
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"try:\n    import horovod.jax as hvd; hvd{use}\n"
        "except ImportError as error:\n    print(error)\n"
    )
    assert "pip install 'horovod[jax]'" in text
