"""Elastic training with ``keras``: ``@hvd.elastic.run def train(state): ...``.

Put callbacks that update the state before ``CommitStateCallback``.
"""

from importlib import import_module
from typing import Any

import keras

from horovod._keras import elastic
from horovod._keras.library import with_base

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


def __getattr__(name: str) -> Any:
    if name == "TensorFlowKerasState":  # the other backends need no TensorFlow
        return import_module("horovod.tensorflow.elastic").TensorFlowKerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
