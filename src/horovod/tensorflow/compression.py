"""Gradient compression for TensorFlow tensors, by name: ``Compression.fp16`` and so on."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.core.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating point tensors as float16; the engine sums in float32 inside a host.

    Values above 65504 overflow to infinity on the wire. Other dtypes pass unchanged.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """``tensor`` of any shape in float16, and the dtype to go back to."""
        if not tensor.dtype.is_floating or tensor.dtype == tf.float16:
            return tensor, None
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """``tensor`` in the dtype that it had before ``compress``."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class Compression:
    """The compressors by name, for the ``compression`` parameter."""

    none = NoneCompressor
    fp16 = FP16Compressor
