"""What a gradient compressor is, without a framework.

A compressor turns a tensor into what travels and back. Optimizer wrappers and ``allreduce`` of
every binding call it on the caller's thread, right before submission and right after completion.
"""

from __future__ import annotations

import reprlib
from typing import Any

__all__ = ["Compressor", "NoneCompressor", "check_compressor"]


class Compressor:
    """Base of all compressors; derive from it and give both static methods.

    Every rank must use the same compressor: what ``compress`` returns is what is reduced, so its
    shape and dtype have to agree on all ranks.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and whatever ``decompress`` needs to undo this."""
        raise NotImplementedError("a Compressor must define compress(tensor) -> (tensor, ctx)")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The received tensor in the form that the original had."""
        raise NotImplementedError("a Compressor must define decompress(tensor, ctx) -> tensor")


class NoneCompressor(Compressor):
    """Sends every tensor as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


def check_compressor(compression: Any) -> None:
    """Refuse what cannot compress a tensor.

    Raises:
        ValueError: it has no ``compress``.
    """
    if not hasattr(compression, "compress"):
        raise ValueError(
            "compression must be a Compressor such as Compression.none or Compression.fp16, found "
            f"{reprlib.repr(compression)}"
        )
