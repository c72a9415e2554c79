"""``SyncBatchNormalization``: Keras batch normalization over the batches of all ranks.

Imported when it is first used, because Keras takes as long to import as TensorFlow.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.core.operations import Average
from horovod.core.process_sets import global_process_set
from horovod.tensorflow import collectives
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.run_time import has_others


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization whose statistics in training are those of all ranks' batches.

    Ranks are assumed to have batches of equal size: their means and mean squares are averaged.
    Inputs and outputs have the shapes and dtypes of ``tf.keras.layers.BatchNormalization``;
    statistics travel in float64. In training a call blocks until all ranks make it, forward and
    backward; they have to call the same layers in the same order. In a world of one, and outside of
    training, this is the standard layer.

    Args:
        fused: must be False, since TensorFlow's fused operation computes its statistics alone.
        kwargs: those of ``tf.keras.layers.BatchNormalization``.

    Raises:
        ValueError: ``fused`` is True or None.
    """

    def __init__(self, fused: bool | None = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True")
        if hasattr(self, "_fused_can_be_used"):  # not in Keras 3
            kwargs["fused"] = False
        super().__init__(**kwargs)

    @not_converted
    def _moments(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The mean and variance of each channel; Keras calls this method."""
        mean, variance = super()._moments(inputs, *args, **kwargs)
        if has_others(global_process_set) is False:
            return mean, variance
        return _of_all_ranks(mean, variance)


def _of_all_ranks(mean: Any, variance: Any) -> tuple[Any, Any]:
    """The mean and variance of all ranks' batches; float64 keeps the difference exact enough."""
    wide = tf.cast(mean, tf.float64)
    squares = tf.cast(variance, tf.float64) + tf.square(wide)
    both = tf.stack([wide, squares])
    both = collectives.allreduce(both, name="sync_batch_norm", op=Average, ignore_name_scope=True)
    total_mean, total_squares = tf.unstack(both)
    total_variance = total_squares - tf.square(total_mean)
    return tf.cast(total_mean, mean.dtype), tf.cast(total_variance, variance.dtype)
