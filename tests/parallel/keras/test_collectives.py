"""Collectives over numbers, lists, arrays, tensors and variables."""

import keras_cases as cases
import numpy as np
import pytest

import horovod.keras as hvd

VALUES = [3.0, [1.0, 2.0], np.arange(3, dtype="float32"), cases.make_variables([1.0, 2.0])[0]]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_allreduce(value):
    expected = np.asarray(cases.values_of([value])[0] if hasattr(value, "assign") else value)
    found = hvd.allreduce(value, name="value")
    np.testing.assert_allclose(np.asarray(found), expected)
    total = hvd.allreduce(value, op=hvd.Sum, postscale_factor=2.0)
    np.testing.assert_allclose(np.asarray(total), 2 * hvd.size() * expected)
    total = hvd.allreduce(value, average=False, compression=hvd.Compression.fp16)
    np.testing.assert_allclose(np.asarray(total), hvd.size() * expected)


@pytest.mark.skipif(not hasattr(hvd.Compression, "bf16"), reason="TensorFlow has fp16 only")
def test_allreduce_in_bfloat16():
    total = hvd.allreduce(np.ones(3, "float32"), op=hvd.Sum, compression=hvd.Compression.bf16)
    np.testing.assert_array_equal(np.asarray(total), hvd.size())


def test_others():
    gathered = hvd.allgather([[float(hvd.rank())]])
    np.testing.assert_array_equal(np.asarray(gathered)[:, 0], np.arange(hvd.size()))
    root = hvd.size() - 1
    np.testing.assert_array_equal(np.asarray(hvd.broadcast(float(hvd.rank()), root)), root)
    rows = hvd.reducescatter(np.ones((2 * hvd.size(), 1), "float32"), op=hvd.Sum)
    np.testing.assert_array_equal(np.asarray(rows), np.full((2, 1), hvd.size()))


def test_results_belong_to_the_backend():
    found = type(hvd.allreduce(1.0)).__module__
    package = {"keras2": "tensorflow", "jax": "jax"}.get(cases.BACKEND, cases.BACKEND)
    assert found.startswith(package)


def test_there_are_no_global_variables():
    with pytest.raises(RuntimeError, match="BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)
