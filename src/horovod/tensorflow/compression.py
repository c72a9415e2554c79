"""Gradient compression for TensorFlow tensors, by name: ``Compression.fp16`` and so on."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.core import compression
from horovod.core.compression import *  # noqa: F403
from horovod.core.compression import CastCompressor, CommonCompression

__all__ = ["Compression", "FP16Compressor"]
__all__ += compression.__all__


class FP16Compressor(CastCompressor):
    """Sends floating point tensors as float16; the engine sums in float32 inside a host.

    Values above 65504 overflow to infinity on the wire. Other dtypes pass unchanged.
    """

    wire_dtype = tf.float16
    cast = staticmethod(tf.cast)

    @staticmethod
    def is_cast(tensor: Any) -> bool:
        """Whether it is floating, and not float16 already."""
        return bool(tensor.dtype.is_floating and tensor.dtype != tf.float16)


class Compression(CommonCompression):
    """The compressors by name, for the ``compression`` parameter."""

    fp16 = FP16Compressor
