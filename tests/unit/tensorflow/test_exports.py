"""The package exports what the documentation lists, and imports nothing slow for it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import (
    compression,
    elastic,
    functions,
    gradient_aggregation,
    mpi_ops,
    optimizer,
    util,
)

DOCUMENTED = """
elastic Compression allgather_object broadcast_object broadcast_object_fn broadcast_variables
allgather grouped_allgather broadcast broadcast_ alltoall allreduce grouped_allreduce reducescatter
grouped_reducescatter join init shutdown is_initialized size local_size cross_size rank local_rank
cross_rank is_homogeneous rank_op local_rank_op size_op local_size_op process_set_included_op
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built
cuda_built rocm_built ProcessSet global_process_set add_process_set remove_process_set Average Sum
Adasum Min Max Product SyncBatchNormalization LocalGradientAggregationHelper
broadcast_global_variables BroadcastGlobalVariablesHook DistributedOptimizer
DistributedGradientTape PartialDistributedGradientTape
dump_recorder log_metrics metrics start_timeline stop_timeline
"""


def test_all_is_what_is_documented():
    assert sorted(hvd.__all__) == sorted(DOCUMENTED.split())
    for name in hvd.__all__:
        assert hasattr(hvd, name), name


@pytest.mark.parametrize(
    "module", [compression, elastic, functions, gradient_aggregation, optimizer], ids=str
)
def test_all_lists_existing_names_once(module):
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name)


@pytest.mark.parametrize("name", ["barrier", "poll", "synchronize", "allreduce_async"])
def test_names_that_are_not_there(name):
    assert not hasattr(hvd, name)


def test_names_that_others_reach_for(world):
    assert hvd._executing_eagerly is util._executing_eagerly
    assert hvd._executing_eagerly()
    assert hvd.gpu_available("tensorflow") is False
    assert mpi_ops._basics.size() == 1


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in DOCUMENTED.split()
        if name.startswith(("all", "broadcast_v", "grouped_", "join", "reduce"))
        or name.endswith("_op")
    ],
)
def test_autograph_leaves_what_is_called_in_functions_alone(name):
    """It would take seconds to translate them."""
    assert hasattr(getattr(hvd, name), "__wrapped__")


def test_reduce_ops_are_the_documented_numbers():
    assert (hvd.Average, hvd.Sum, hvd.Adasum) == (0, 1, 2)
    assert (hvd.Min, hvd.Max, hvd.Product) == (3, 4, 5)


def test_hook_and_layer_are_subclasses():
    assert issubclass(hvd.BroadcastGlobalVariablesHook, tf.compat.v1.train.SessionRunHook)
    assert issubclass(hvd.SyncBatchNormalization, tf.keras.layers.BatchNormalization)


def run(script: str) -> str:
    command = [sys.executable, "-c", script]
    job = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    return job.stdout


def test_import_brings_nothing_slow():
    added = run(
        "import sys, tensorflow\nbefore = set(sys.modules)\nimport horovod.tensorflow\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    assert not {"keras", "tf_keras", "tensorflow_estimator", "torch", "jax"} & set(added.split())


def test_import_without_tensorflow_says_what_to_install():
    text = run(
        "import sys; sys.modules['tensorflow'] = None\n"
        "try:\n    import horovod.tensorflow\n"
        "except ImportError as error:\n    print(error)\n"
    )
    assert "pip install 'horovod[tensorflow]'" in text
