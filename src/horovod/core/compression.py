"""Gradient compressors, without a framework.

A compressor turns a tensor into what travels and back. Optimizer wrappers and ``allreduce`` of
every binding call it on the caller's thread, right before submission and right after completion.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from typing import Any


class Compressor:
    """Base of all compressors; derive from it and give both static methods.

    Every rank must use the same compressor: what ``compress`` returns is what is reduced, so its
    shape and dtype have to agree on all ranks.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what ``decompress`` needs to undo this."""
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


def _astype(array: Any, dtype: Any) -> Any:
    return array.astype(dtype)


class CastCompressor(Compressor):
    """Sends tensors in the dtype ``wire_dtype``; a framework says how it casts, and what.

    Attributes:
        wire_dtype: what travels.
        is_cast: whether a tensor is cast; others pass unchanged.
        cast: a tensor in another dtype; by default its ``astype``.
    """

    wire_dtype: Any
    is_cast: Callable[[Any], bool]
    cast: Callable[[Any, Any], Any] = staticmethod(_astype)

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """``tensor`` of any shape in the dtype that travels, and the dtype to go back to."""
        if not cls.is_cast(tensor):
            return tensor, None
        return cls.cast(tensor, cls.wire_dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """``tensor`` in the dtype that it had before ``compress``."""
        return tensor if ctx is None else cls.cast(tensor, ctx)


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


def compress_all(compression: Any, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The tensors to send, and what ``decompress_all`` needs; ``ValueError`` without compressor."""
    check_compressor(compression)
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [wire for wire, _ in pairs], [context for _, context in pairs]


def decompress_all(compression: Any, wires: Sequence[Any], contexts: Sequence[Any]) -> list[Any]:
    """The received tensors in the forms that the originals had."""
    pairs = zip(wires, contexts, strict=True)
    return [compression.decompress(wire, context) for wire, context in pairs]
