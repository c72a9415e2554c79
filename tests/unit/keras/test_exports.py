"""The exports of the two Keras modules."""

import importlib.util
import inspect

import keras
import pytest

import horovod.keras as hvd

COMMON = [
    "init",
    "shutdown",
    "is_initialized",
    "size",
    "local_size",
    "cross_size",
    "rank",
    "local_rank",
    "cross_rank",
    "mpi_threads_supported",
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "global_process_set",
    "Average",
    "Sum",
    "Compression",
    "callbacks",
    "elastic",
    "DistributedOptimizer",
    "broadcast_global_variables",
    "allreduce",
    "allgather",
    "broadcast",
    "reducescatter",
    "load_model",
    "dump_recorder",
    "log_metrics",
    "metrics",
    "start_timeline",
    "stop_timeline",
]
CALLBACKS = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "DiLoCoCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LocalSGDCallback",
    "LogMetricsCallback",
    "MetricAverageCallback",
    "TrackerCallback",
]
ELASTIC = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


def fronts():
    found = [(hvd, keras, ["Adasum", "PartialDistributedOptimizer"])]
    if importlib.util.find_spec("tensorflow") is not None:
        import tensorflow as tf

        import horovod.tensorflow.keras as tf_hvd

        sets = ["ProcessSet", "add_process_set", "remove_process_set"]
        found.append((tf_hvd, tf.keras, sets))
    return found


@pytest.mark.parametrize(("front", "library", "own"), fronts(), ids=["keras", "tf.keras"])
def test_names(front, library, own):
    assert sorted(front.__all__) == sorted([*COMMON, *own])
    assert sorted(front.callbacks.__all__) == CALLBACKS
    assert sorted(front.elastic.__all__) == ELASTIC
    for module in (front, front.callbacks, front.elastic):
        for name in module.__all__:
            assert getattr(module, name) is not None
    for name in CALLBACKS:
        kind = getattr(front.callbacks, name)
        assert issubclass(kind, library.callbacks.Callback)
        assert (kind.__module__, kind.__name__) == (front.callbacks.__name__, name)
        assert kind.__doc__


@pytest.mark.parametrize(("front", "library", "own"), fronts(), ids=["keras", "tf.keras"])
def test_signatures(front, library, own):
    is_keras = front is hvd
    optimizer = list(inspect.signature(front.DistributedOptimizer).parameters)
    assert optimizer[:8] == [
        "optimizer",
        "name",
        "device_dense",
        "device_sparse",
        "compression",
        "sparse_as_dense",
        "gradient_predivide_factor",
        "op",
    ]
    passes = ["backward_passes_per_step", "average_aggregated_gradients"]
    last = ["process_set", "scale_local_gradients"]
    groups = ["num_groups", "groups"]
    expected = groups if is_keras else passes + groups + last
    assert optimizer[8:] == [*expected, "sharded"]  # ours, so it comes last
    average = inspect.signature(front.allreduce).parameters["average"].default
    assert average is (True if is_keras else None)
    checkpoint = inspect.signature(front.callbacks.BestModelCheckpoint).parameters
    assert ("save_weights_only" in checkpoint) is not is_keras
