"""Gradient compression for arrays of JAX, by name: ``Compression.fp16`` and so on.

``docs/compression.md`` tells what each does to numbers and memory, and when it pays.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from horovod.core import compression
from horovod.core.compression import *  # noqa: F403
from horovod.core.compression import CastCompressor, CommonCompression
from horovod.jax.powersgd import PowerSGD
from horovod.jax.topk import TopK

__all__ = ["BF16Compressor", "Compression", "FP16Compressor", "PowerSGD", "TopK"]
__all__ += compression.__all__


class FP16Compressor(CastCompressor):
    """Sends floating point arrays as float16; the engine sums in float32 inside a host.

    Values above 65504 overflow to infinity on the wire. Other dtypes pass unchanged.
    """

    wire_dtype = jnp.float16

    @staticmethod
    def is_cast(tensor: Any) -> bool:
        """Whether it is floating."""
        return bool(jnp.issubdtype(tensor.dtype, jnp.floating))


class BF16Compressor(CastCompressor):
    """Sends float32 and float64 arrays as bfloat16; the engine sums in float32 inside a host.

    The range is that of float32, so nothing overflows, at two to three decimal digits. Other dtypes
    pass unchanged, float16 too: it is as short and more exact.
    """

    wire_dtype = jnp.bfloat16

    @staticmethod
    def is_cast(tensor: Any) -> bool:
        """Whether it is floating, and longer than bfloat16."""
        return bool(jnp.issubdtype(tensor.dtype, jnp.floating)) and tensor.dtype.itemsize > 2


class Compression(CommonCompression):
    """The compressors by name, for the ``compression`` parameter."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor
    powersgd = PowerSGD  # to be called: Compression.powersgd(rank=4)
    topk = TopK  # likewise: Compression.topk(ratio=0.01)
