"""FP16Compressor casts floats, and nothing else; bad compressors are refused."""

from __future__ import annotations

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.compression import Compressor


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16])
def test_floats_travel_as_float16(dtype):
    tensor = tf.constant([1.5, -2.0], dtype)
    packed, context = hvd.Compression.fp16.compress(tensor)
    assert packed.dtype == tf.float16
    restored = hvd.Compression.fp16.decompress(packed, context)
    assert restored.dtype == dtype
    assert restored.numpy().tolist() == [1.5, -2.0]


@pytest.mark.parametrize("dtype", [tf.int32, tf.uint8, tf.float16, tf.bool])
def test_others_pass(dtype):
    tensor = tf.cast([1, 0], dtype)
    packed, context = hvd.Compression.fp16.compress(tensor)
    assert packed is tensor
    assert hvd.Compression.fp16.decompress(packed, context) is tensor


def test_none_passes():
    tensor = tf.constant(1.0)
    assert hvd.Compression.none.compress(tensor)[0] is tensor
    assert hvd.Compression.none.decompress(tensor, None) is tensor


def test_base_class_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="must define compress"):
        Compressor.compress(tf.constant(1.0))


@pytest.mark.parametrize("call", [hvd.allreduce, hvd.reducescatter])
def test_no_compressor(world, call):
    with pytest.raises(ValueError, match="compression must be a Compressor"):
        call(tf.ones(2), compression="fp16")
