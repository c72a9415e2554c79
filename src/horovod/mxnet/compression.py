"""Gradient compression for arrays of MXNet, by name: ``Compression.fp16`` and so on.

``docs/compression.md`` tells what each does to numbers and memory, and when it pays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horovod.core import compression
from horovod.core.compression import *  # noqa: F403
from horovod.core.compression import CastCompressor, CommonCompression

__all__ = ["Compression", "FP16Compressor"]
__all__ += compression.__all__


class FP16Compressor(CastCompressor):
    """Sends floating point arrays as float16; the engine sums in float32 inside a host.

    Values above 65504 overflow to infinity on the wire. Other dtypes pass unchanged.
    """

    wire_dtype = np.float16

    @staticmethod
    def is_cast(tensor: Any) -> bool:
        """Whether it is float32 or float64."""
        return tensor.dtype in (np.float32, np.float64)


class Compression(CommonCompression):
    """The compressors by name, for the ``compression`` parameter."""

    fp16 = FP16Compressor
