"""Many collectives in one graph, in a different order on every rank, with one thread.

Exits with 77 if TensorFlow runs the Python operations, which keep the order of the graph.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.python_ops import PythonOps

COUNT = 60


def collectives(tensor: tf.Tensor, order: list[int]) -> list[tf.Tensor]:
    """Results by index, of operations that are created and can start in this order."""
    results = {}
    previous = []
    for index in order:
        # Its input is ready only after that of the previous one: nodes start in this order.
        with tf.control_dependencies(previous):
            given = tf.identity(tensor) + index
        previous = [given]
        if index % 3 == 0:
            results[index] = mpi_ops.allreduce(given, f"t{index}", hvd.Sum)
        elif index % 3 == 1:
            results[index] = tf.reduce_sum(mpi_ops.allgather(given, f"t{index}"))
        else:
            results[index] = mpi_ops.broadcast(given, 0, f"t{index}")
    return [results[index] for index in range(COUNT)]


def expected(index: int) -> float:
    if index % 3 == 2:
        return float(index)
    return float(hvd.size() * index + sum(range(hvd.size())))


def check(results: list[np.ndarray]) -> None:
    for index, result in enumerate(results):
        np.testing.assert_array_equal(np.ravel(result), [expected(index)])


tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
hvd.init()
if isinstance(mpi_ops.implementation(), PythonOps):
    sys.exit(77)
shuffled = np.random.default_rng(hvd.rank()).permutation(COUNT).tolist()
for order in (list(range(COUNT))[:: -1 if hvd.rank() % 2 else 1], shuffled):
    traced = tf.function(lambda tensor, order=order: collectives(tensor, order), autograph=False)
    for _ in range(3):
        check([result.numpy() for result in traced(tf.constant([float(hvd.rank())]))])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        outputs = collectives(tf.constant([float(hvd.rank())]), order)
        for _ in range(3):
            check(session.run(outputs))
print(f"rank {hvd.rank()} is done", flush=True)
