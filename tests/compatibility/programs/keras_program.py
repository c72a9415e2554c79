"""Imports Keras's deep paths as programs of others do, and fits with callbacks of a fork."""

import keras
import numpy as np

import horovod.keras as hvd
from horovod._keras.callbacks import MetricAverageCallbackImpl
from horovod.keras.callbacks import BroadcastGlobalVariablesCallback, LearningRateWarmupCallback
from horovod.keras.elastic import KerasState, TensorFlowKerasState
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.keras import DistributedOptimizer
from horovod.tensorflow.keras.callbacks import MetricAverageCallback
from horovod.tensorflow.mpi_ops import rank, size

hvd.init()
assert issubclass(TensorFlowKerasState, object)
assert callable(KerasState)


class Averages(MetricAverageCallbackImpl, keras.callbacks.Callback):
    """Of a fork of the callbacks."""

    def __init__(self):
        super().__init__(keras.backend)


optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), compression=Compression.fp16)
model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
model.set_weights([np.full((1, 1), rank() + 1.0)])
model.compile(optimizer=optimizer, loss="mse")
history = model.fit(
    np.ones((4, 1)) * (rank() + 1),
    np.zeros((4, 1)),
    batch_size=2,
    epochs=2,
    callbacks=[
        BroadcastGlobalVariablesCallback(0),
        MetricAverageCallback(),
        Averages(),
        LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=1, steps_per_epoch=2),
    ],
    verbose=0,
)
weights = hvd.allgather(model.get_weights()[0], "weights")
assert np.ptp(np.asarray(weights)) == 0.0, weights
losses = hvd.allgather(np.array(history.history["loss"])[None], "losses")
assert np.ptp(np.asarray(losses), axis=0).max() < 1e-6, losses
assert np.shape(losses) == (size(), 2)
print("fine")
