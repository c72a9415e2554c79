"""Reduces gradients of TensorFlow in int8, and notes in ``report.R`` which of them are exact."""

from __future__ import annotations

import notes
import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.gradient_reduction import Reducer

NAMES = ("kernel", "embeddings", "gamma")

hvd.init()
variables = [tf.Variable(tf.zeros(3000), name=name) for name in NAMES]
mine = tf.constant(np.random.default_rng(hvd.rank()).standard_normal(3000), tf.float32)
exact = hvd.allreduce(mine, name="plain").numpy()
report = {}
for groups in (None, 1):
    reduce = Reducer("reducer", "", "", hvd.Compression.int8, False, hvd.Average, 1.0, groups)

    def step(reduce: Reducer = reduce) -> list[tf.Tensor]:
        return reduce([mine + 0 for _ in variables], variables)

    modes = {"eager": step, "graph": tf.function(step), "xla": tf.function(step, jit_compile=True)}
    for mode, run in modes.items():
        found = [np.array_equal(gradient.numpy(), exact) for gradient in run()]
        report[f"{mode} {groups}"] = dict(zip(NAMES, map(bool, found), strict=True))
notes.leave(f"report.{hvd.rank()}", report)
hvd.shutdown()
