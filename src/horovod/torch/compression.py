"""Gradient compression for torch tensors, by name: ``Compression.fp16`` and so on.

``docs/compression.md`` tells what each does to numbers and memory, and when it pays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from horovod.core import compression
from horovod.core.compression import *  # noqa: F403
from horovod.core.compression import CastCompressor, CommonCompression
from horovod.torch.powersgd import PowerSGD
from horovod.torch.topk import TopK

__all__ = ["BF16Compressor", "Compression", "FP16Compressor", "PowerSGD", "TopK"]
__all__ += compression.__all__


class FP16Compressor(CastCompressor):
    """Sends floating point tensors as float16; the engine sums in float32 inside a host.

    Values above 65504 overflow to infinity on the wire. Other dtypes pass unchanged.
    """

    wire_dtype = torch.float16
    cast = staticmethod(Tensor.to)

    @staticmethod
    def is_cast(tensor: Tensor) -> bool:
        """Whether it is floating."""
        return tensor.dtype.is_floating_point


class BF16Compressor(CastCompressor):
    """Sends float32 and float64 tensors as bfloat16; the engine sums in float32 inside a host.

    The range is that of float32, so nothing overflows, at two to three decimal digits. Other dtypes
    pass unchanged, float16 too: it is as short and more exact.
    """

    wire_dtype = torch.bfloat16
    cast = staticmethod(Tensor.to)

    @staticmethod
    def is_cast(tensor: Tensor) -> bool:
        """Whether it is floating, and longer than bfloat16."""
        return tensor.dtype.is_floating_point and tensor.element_size() > 2


class Compression(CommonCompression):
    """The compressors by name, for the ``compression`` parameter."""

    fp16 = FP16Compressor
    bf16 = BF16Compressor
    powersgd = PowerSGD  # to be called: Compression.powersgd(rank=4)
    topk = TopK  # likewise: Compression.topk(ratio=0.01)
