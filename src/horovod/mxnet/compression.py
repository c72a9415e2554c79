"""Gradient compression for arrays of MXNet, by name: ``Compression.fp16`` and so on.

``docs/compression.md`` tells what each does to numbers and memory, and when it pays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.core.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating point arrays as float16; the engine sums in float32 inside a host.

    Values above 65504 overflow to infinity on the wire. Other dtypes pass unchanged.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """``tensor`` of any shape in float16, and the dtype to go back to."""
        if tensor.dtype not in (np.float32, np.float64):
            return tensor, None
        return tensor.astype(np.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """``tensor`` in the dtype that it had before ``compress``."""
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """The compressors by name, for the ``compression`` parameter."""

    none = NoneCompressor
    fp16 = FP16Compressor
