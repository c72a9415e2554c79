"""Elastic training with ``tf.keras``: ``@hvd.elastic.run def train(state): ...``.

Put callbacks that update the state before ``CommitStateCallback``.
"""

import tensorflow as tf

from horovod._keras import elastic
from horovod._keras.library import with_base
from horovod.tensorflow.elastic import TensorFlowKerasState as TensorFlowKerasState

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

_args = (tf.keras.callbacks.Callback, tf.keras, __name__)

run = elastic.make_run(tf.keras)
KerasState = with_base(elastic.KerasState, object, tf.keras, __name__)
CommitStateCallback = with_base(elastic.CommitStateCallback, *_args)
UpdateBatchStateCallback = with_base(elastic.UpdateBatchStateCallback, *_args)
UpdateEpochStateCallback = with_base(elastic.UpdateEpochStateCallback, *_args)
