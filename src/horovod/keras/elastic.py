"""Elastic training with ``keras``: ``@hvd.elastic.run def train(state): ...``.

Put callbacks that update the state before ``CommitStateCallback``.
"""

import keras

from horovod._keras import elastic
from horovod._keras.library import with_base
from horovod.core.base.later import imported_later as _imported_later

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

_args = (keras.callbacks.Callback, keras, __name__)

run = elastic.make_run(keras)
KerasState = with_base(elastic.KerasState, object, keras, __name__)
CommitStateCallback = with_base(elastic.CommitStateCallback, *_args)
UpdateBatchStateCallback = with_base(elastic.UpdateBatchStateCallback, *_args)
UpdateEpochStateCallback = with_base(elastic.UpdateEpochStateCallback, *_args)
# The other backends need no TensorFlow.
__getattr__ = _imported_later(__name__, {"TensorFlowKerasState": "horovod.tensorflow.elastic"})
