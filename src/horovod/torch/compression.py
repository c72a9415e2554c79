"""Gradient compression for torch tensors: ``Compression.none`` and ``Compression.fp16``."""

from __future__ import annotations

import torch
from torch import Tensor

from horovod.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


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
    def decompress(tensor: Tensor, context: torch.dtype | None) -> Tensor:
        """``tensor`` in the dtype that it had before ``compress``."""
        return tensor if context is None else tensor.to(context)


class Compression:
    """The compressors by name, for the ``compression`` parameter."""

    none = NoneCompressor
    fp16 = FP16Compressor
