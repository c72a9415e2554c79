"""``SyncBatchNormalization``: Keras batch normalization over the batches of all ranks.

Imported when it is first used, because Keras takes as long to import as TensorFlow.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.core.operations import Sum
from horovod.core.process_sets import global_process_set
from horovod.tensorflow import collectives
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.run_time import has_others


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization whose statistics in training are those of all ranks' batches.

    Elements are counted, without those that a mask leaves out: ranks may have batches of different
    size, and a rank that has joined has none. Inputs and outputs have the shapes and dtypes of
    ``tf.keras.layers.BatchNormalization``; statistics travel in float64. In training a call blocks
    until all ranks make it, forward and backward; they have to call the same layers in the same
    order. In a world of one, and outside of training, this is the standard layer.

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
        # Keras 2 gives the axes here, and the mask by name.
        first = args[0] if args else None
        mask, axes = kwargs.get("mask", first), getattr(self, "_reduction_axes", first)
        return _of_all_ranks(mean, variance, _count_of(inputs, mean, mask, axes))


def _count_of(inputs: Any, mean: Any, mask: Any, axes: Any) -> Any:
    """How many elements of this rank each mean is of."""
    if not tf.is_tensor(mask):
        return tf.fill(tf.shape(mean), tf.cast(tf.size(inputs) / tf.size(mean), tf.float64))
    taken = tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs))
    counts = tf.reduce_sum(tf.cast(tf.cast(taken, tf.bool), tf.float64), axes)
    return tf.reshape(counts, tf.shape(mean))


def _of_all_ranks(mean: Any, variance: Any, count: Any) -> tuple[Any, Any]:
    """The mean and variance of all ranks' batches; float64 keeps the difference exact enough."""
    wide = tf.cast(mean, tf.float64)
    squares = tf.cast(variance, tf.float64) + tf.square(wide)
    # The mean of nothing is NaN.
    sums = [tf.math.multiply_no_nan(one, count) for one in (wide, squares)]
    total = tf.stack([*sums, count])
    total = collectives.allreduce(total, name="sync_batch_norm", op=Sum, ignore_name_scope=True)
    *total_sums, total_count = tf.unstack(total)
    total_mean, total_squares = [tf.math.divide_no_nan(one, total_count) for one in total_sums]
    total_variance = total_squares - tf.square(total_mean)
    return tf.cast(total_mean, mean.dtype), tf.cast(total_variance, variance.dtype)
