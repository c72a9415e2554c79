"""Gradient compression for torch tensors, by name: ``Compression.fp16`` and so on.

``docs/compression.md`` tells what each does to numbers and memory, and when it pays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from horovod.core.compression import Compressor, NoneCompressor
from horovod.torch.powersgd import PowerSGD

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "NoneCompressor",
    "PowerSGD",
]


class FP16Compressor(Compressor):
    """Sends floating point tensors as float16; the engine sums in float32 inside a host.

    Values above 65504 overflow to infinity on the wire. Other dtypes pass unchanged.
    """

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """``tensor`` of any shape in float16, and the dtype to go back to."""
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """``tensor`` in the dtype that it had before ``compress``."""
        return tensor if ctx is None else tensor.to(ctx)


class BF16Compressor(Compressor):
    """Sends float32 and float64 tensors as bfloat16; the engine sums in float32 inside a host.

    The range is that of float32, so nothing overflows, at two to three decimal digits. Other dtypes
    pass unchanged, float16 too: it is as short and more exact.
    """

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """``tensor`` of any shape in bfloat16, and the dtype to go back to."""
        if not tensor.dtype.is_floating_point or tensor.element_size() <= 2:
            return tensor, None
        return tensor.to(torch.bfloat16), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """``tensor`` in the dtype that it had before ``compress``."""
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The compressors by name, for the ``compression`` parameter."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    powersgd = PowerSGD  # to be called: Compression.powersgd(rank=4)
