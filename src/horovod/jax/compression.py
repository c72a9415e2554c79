"""Gradient compression for arrays of JAX, by name: ``Compression.fp16`` and so on.

``docs/compression.md`` tells what each does to numbers and memory, and when it pays.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from horovod.core.compression import Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating point arrays as float16; the engine sums in float32 inside a host.

    Values above 65504 overflow to infinity on the wire. Other dtypes pass unchanged.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """``tensor`` in float16, and the dtype to go back to."""
        if not jnp.issubdtype(tensor.dtype, jnp.floating):
            return tensor, None
        return tensor.astype(jnp.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """``tensor`` in the dtype that it had before ``compress``."""
        return tensor if ctx is None else tensor.astype(ctx)


class BF16Compressor(Compressor):
    """Sends float32 and float64 arrays as bfloat16; the engine sums in float32 inside a host.

    The range is that of float32, so nothing overflows, at two to three decimal digits. Other dtypes
    pass unchanged, float16 too: it is as short and more exact.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """``tensor`` in bfloat16, and the dtype to go back to."""
        if not jnp.issubdtype(tensor.dtype, jnp.floating) or tensor.dtype.itemsize <= 2:
            return tensor, None
        return tensor.astype(jnp.bfloat16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """``tensor`` in the dtype that it had before ``compress``."""
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """The compressors by name, for the ``compression`` parameter."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
