"""Functions that XLA compiles for a GPU, or for the device that is given, with collectives in them.

Start it with HOROVOD_ENABLE_XLA_OPS=1.
"""

import sys

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops

hvd.init()
rank, size = hvd.rank(), hvd.size()
device = sys.argv[1] if len(sys.argv) > 1 else "GPU"
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)  # ranks may share one
total = size * (size + 1) / 2


@tf.function(jit_compile=True)
def collect(x):
    summed = hvd.allreduce(x + float(rank), op=hvd.Sum)  # after work of the program's stream
    rows, received = hvd.alltoall(tf.fill([2 * size], float(rank)), [2] * size)
    return (
        summed * 2,
        hvd.broadcast(x * float(rank), size - 1),
        hvd.allgather(x[:2] * float(rank)),
        rows,
        received,
        *hvd.grouped_allreduce([x, tf.cast(x[:3], tf.float16)], op=hvd.Average),
        mpi_ops.rank_op(),
    )


@tf.function(jit_compile=True)
def gradient(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(hvd.allreduce(x * x, op=hvd.Sum))
    return tape.gradient(loss, x)


with tf.device(device):
    for _ in range(20):
        found = collect(tf.ones(1000))
        assert device in found[0].device, found[0].device
        expected = [
            2 * total,
            size - 1,
            np.repeat(np.arange(size), 2),
            np.repeat(np.arange(size), 2),
        ]
        expected += [[2] * size, 1, 1, rank]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, np.broadcast_to(other, one.shape))
    large = tf.function(lambda x: hvd.allreduce(x, op=hvd.Average), jit_compile=True)
    np.testing.assert_allclose(large(tf.fill([1 << 22], rank + 1.0)), total / size)
    np.testing.assert_allclose(gradient(tf.range(4.0)), 2 * np.arange(4.0) * size)
    assert 0 <= int(tf.function(hvd.join, jit_compile=True)()) < size
    fails = tf.function(lambda x: hvd.allgather(x, name="mine"), jit_compile=True)
    failure = ""
    try:
        fails(tf.ones(3 if rank == 0 else 2))
    except tf.errors.InternalError as error:
        failure = str(error)
    assert ("'mine'" in failure) == (size > 1), failure
hvd.shutdown()
