"""The gradients of a tape in int4 in each of some steps; notes as ``fed_back.py`` does."""

from __future__ import annotations

import notes
import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

STEPS = 24
HALF_STEP = 1 / 12  # of int4, of the largest of a block

hvd.init()
inputs = [
    np.random.default_rng(rank).standard_normal(4096).astype(np.float32)
    for rank in range(hvd.size())
]
exact = np.mean(inputs, axis=0)
unit = HALF_STEP * max(map(np.max, map(np.abs, inputs)))
weight = tf.Variable(tf.zeros(4096), name="kernel")
mine = tf.constant(inputs[hvd.rank()])


def step() -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight * mine)
    tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.int4)
    return tape.gradient(loss, [weight])[0]


report = {}
for mode, run in {"eager": step, "graph": tf.function(step)}.items():
    total = sum(run().numpy().astype(np.float64) for _ in range(STEPS))
    report[mode] = float(np.abs(total - STEPS * exact).max() / unit)
notes.leave(f"report.{hvd.rank()}", report)
hvd.shutdown()
