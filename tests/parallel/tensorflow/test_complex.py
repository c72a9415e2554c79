"""Complex numbers, which travel as pairs of real ones."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import horovod.tensorflow as hvd  # noqa: E402

MODES = {
    "eager": lambda body: body,
    "function": tf.function,
    "XLA": lambda body: tf.function(body, jit_compile=True),
}


@pytest.fixture(params=MODES.values(), ids=MODES.keys())
def mode(request, monkeypatch):
    monkeypatch.setenv("HOROVOD_ENABLE_XLA_OPS", "1")
    return request.param


def own(dtype=np.complex64, rank=None, count=6):
    """Numbers whose sums have no rounding."""
    rank = hvd.rank() if rank is None else rank
    return np.arange(count).astype(dtype) * dtype(complex(rank + 1, -2 * rank))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_collectives(mode, dtype):
    ranks = range(hvd.size())
    total = sum(own(dtype, rank) for rank in ranks)

    @mode
    def run(z):
        return (
            hvd.allreduce(z, op=hvd.Sum),
            hvd.grouped_allreduce([z, tf.math.real(z)], op=hvd.Sum)[0],
            hvd.broadcast(z, hvd.size() - 1),
            hvd.allgather(z),
            hvd.alltoall(tf.tile(z[1:2], [hvd.size()])),
            hvd.reducescatter(tf.tile(z, [hvd.size()]), op=hvd.Sum),
        )

    found = run(tf.constant(own(dtype)))
    expected = (total, total, own(dtype, hvd.size() - 1))
    expected += (np.concatenate([own(dtype, rank) for rank in ranks]),)
    expected += (np.stack([own(dtype, rank)[1] for rank in ranks]), total)
    for result, right in zip(found, expected, strict=True):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, right)


def test_gradient(mode):
    def gradient(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            loss = tf.reduce_sum(tf.abs(hvd.allreduce(z, name="mean")) ** 2)
        return tape.gradient(loss, z)

    mean = sum(own(rank=rank) for rank in range(hvd.size())) / hvd.size()
    found = mode(gradient)(tf.constant(own()))
    np.testing.assert_allclose(found, 2 * mean, rtol=1e-5)


def test_what_complex_numbers_do_not_have_is_refused(mode):
    refusals = (ValueError, tf.errors.InvalidArgumentError)
    with pytest.raises(refusals, match=r"allreduce 'z\w*': complex numbers have no Max; they have"):
        mode(lambda z: hvd.allreduce(z, op=hvd.Max, name="z"))(tf.constant(own()))
