"""Gradient compressors, without a framework.

A compressor turns a tensor into what travels and back. Optimizer wrappers and ``allreduce`` of
every binding call it on the caller's thread, right before submission and right after completion.
"""

from __future__ import annotations

import math
import reprlib
import zlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from numbers import Integral, Real
from typing import Any, ClassVar

# Those that each binding has in its ``compression``.
__all__ = [
    "Compressor",
    "FP8Compressor",
    "Int4Compressor",
    "Int8Compressor",
    "MXFP8Compressor",
    "NoneCompressor",
]


# The part of an element's index that travels for itself, with top-k.
LOW_BITS = 16
LOW = (1 << LOW_BITS) - 1


class LinkFormat(IntEnum):
    """How an allreduce travels between hosts, numbered as in ``engine/core/link_format.h``."""

    AS_SET = 0  # as HOROVOD_LINK_COMPRESSION says
    EXACT = 1
    INT8 = 2
    FP8 = 3
    INT4 = 4
    MXFP8 = 5
    TUNED = 6  # as autotuning says; never of a compressor


# By the values of HOROVOD_LINK_COMPRESSION.
LINK_FORMATS = {
    "none": LinkFormat.EXACT,
    "int8": LinkFormat.INT8,
    "fp8": LinkFormat.FP8,
    "mxfp8": LinkFormat.MXFP8,
    "int4": LinkFormat.INT4,
}


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


class Int8Compressor(NoneCompressor):
    """Between hosts, 8 bits for each element and a float32 scale for each 128; inside, exact.

    For Average and Sum of float32, float16 and bfloat16 in host memory. The engine codes what it
    sends; tensors with fewer elements than HOROVOD_LINK_COMPRESSION_MIN_ELEMENTS travel exactly.
    """

    link_format = LinkFormat.INT8


class FP8Compressor(NoneCompressor):
    """The same with floating 8 bits (e4m3): small elements keep more, large ones less."""

    link_format = LinkFormat.FP8


class MXFP8Compressor(NoneCompressor):
    """FP8 with a power of two as scale for each 32 elements, after OCP Microscaling (MX)."""

    link_format = LinkFormat.MXFP8


class Int4Compressor(NoneCompressor):
    """Int8 with 4 bits: for gradients with error feedback, as optimizers of PyTorch and JAX."""

    link_format = LinkFormat.INT4


class ExactCompressor(NoneCompressor):
    """Sends every tensor as it is between hosts, too, whatever HOROVOD_LINK_COMPRESSION says."""

    link_format = LinkFormat.EXACT


class CommonCompression:
    """The compressors of all frameworks by name, for their ``Compression``."""

    none = NoneCompressor
    int8 = Int8Compressor
    fp8 = FP8Compressor
    mxfp8 = MXFP8Compressor
    int4 = Int4Compressor


class FeedbackCompressor(Compressor):
    """Base of those that keep what they leave out of a gradient, and add it to the next one.

    They work as ``DistributedOptimizer(compression=...)``, with ``op`` Average or Sum; topk with
    local steps, too. All ranks need equal options. Every rank keeps its own errors, as much memory
    as the gradients.

    Attributes:
        title: the name in ``Compression``.
    """

    title: ClassVar[str]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Always a ``ValueError``: one tensor alone cannot be compressed before it is reduced."""
        raise ValueError(
            f"Compression.{cls.title} remembers errors and is more than one reduction: it works as "
            "DistributedOptimizer(compression=...), not with single operations; use "
            "none, fp16, bf16, int8, fp8, mxfp8 or int4 there"
        )

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Nothing to undo: ``compress`` never succeeds."""
        return tensor


class TopKCompressor(FeedbackCompressor):
    """Sends the elements of a gradient with the largest magnitudes, and where they are.

    Small tensors, biases, norms and embeddings are exact, as with the formats for links, and so is
    what is not floating point. Every rank chooses its own elements, so a rank receives those of all
    ranks: ``ratio`` times the number of ranks should be well below 1.

    Args:
        ratio: which part of the elements is sent, above 0, at most 1. 0.001 to 0.1 is usual.
        half: elements travel as bfloat16. What rounding takes from them is in the error.

    Raises:
        ValueError: the option is out of range.
    """

    title = "topk"

    def __init__(self, ratio: float = 0.01, *, half: bool = False) -> None:
        if isinstance(ratio, bool) or not isinstance(ratio, Real) or not 0 < ratio <= 1:
            found = reprlib.repr(ratio)
            raise ValueError(f"topk: ratio must be above 0 and at most 1, found {found}")
        # NumPy's short ones would overflow when they are multiplied.
        self._ratio: float = float(ratio)
        if not isinstance(half, bool):
            raise ValueError(f"topk: half must be True or False, found {reprlib.repr(half)}")
        self.half: bool = half

    def __repr__(self) -> str:
        return f"topk(ratio={self._ratio}, half={self.half})"

    def count(self, elements: int) -> int:
        """How many of so many elements, at least one, are sent; the same on all ranks."""
        return max(1, round(self._ratio * elements))


class PowerSGDCompressor(FeedbackCompressor):
    """Low-rank compression: a matrix is sent as the product of two thin ones.

    A gradient ``[n, ...]`` is seen as a matrix ``[n, m]``; ``rank * (n + m)`` numbers travel in
    place of ``n * m``. Vectors, small matrices and integers travel as they are.

    Args:
        rank: rank of the approximation; more is more exact and more to send. 1 to 4 is usual.
        start_after: steps that go uncompressed first.
        min_compression_rate: a matrix is compressed only if that makes it so many times smaller.
        seed: of the first Q.

    Raises:
        ValueError: an option is out of range.
    """

    title = "powersgd"

    def __init__(
        self,
        rank: int = 4,
        *,
        start_after: int = 0,
        min_compression_rate: float = 2.0,
        seed: int = 0,
    ) -> None:
        _check_integer("rank", rank, 1)
        _check_integer("start_after", start_after, 0)
        is_number = isinstance(min_compression_rate, Real)
        if not is_number or not min_compression_rate > 0:
            raise ValueError(
                "powersgd: min_compression_rate must be positive, found "
                f"{reprlib.repr(min_compression_rate)}"
            )
        self._rank = rank
        self._start_after = start_after
        self._min_rate = float(min_compression_rate)
        self._seed = seed

    def __repr__(self) -> str:
        return (
            f"powersgd(rank={self._rank}, start_after={self._start_after}, "
            f"min_compression_rate={self._min_rate}, seed={self._seed})"
        )

    def matrix_of(self, shape: Sequence[int]) -> tuple[int, int, int] | None:
        """Rows, columns and the approximation's rank; None: this shape travels as it is."""
        if len(shape) < 2 or 0 in shape:
            return None
        rows, columns = shape[0], math.prod(shape[1:])
        rank = min(self._rank, rows, columns)
        pays = rows * columns >= self._min_rate * rank * (rows + columns)
        return (rows, columns, rank) if pays else None

    def seed_of(self, name: str) -> int:
        """Of the first Q of a gradient: the same on all ranks, in whatever order they come."""
        return zlib.crc32(f"{self._seed} {name}".encode())


def _check_integer(option: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        found = reprlib.repr(value)
        raise ValueError(f"powersgd: {option} must be an integer >= {least}, found {found}")


def compression_text(compression: Any) -> str:
    """What a user knows it by, with its options if it has some; equal for equal ones."""
    if isinstance(compression, FeedbackCompressor):
        return repr(compression)
    kind = compression if isinstance(compression, type) else type(compression)
    return kind.__name__


def link_format_of(compression: Any) -> LinkFormat:
    """How tensors with this compressor travel between hosts."""
    return LinkFormat(getattr(compression, "link_format", LinkFormat.AS_SET))


def keeps_tensors(compression: Any) -> bool:
    """Whether the tensors themselves are given to the engine."""
    return getattr(compression, "compress", None) is NoneCompressor.compress


def check_not_on_links(compression: Any, title: str) -> None:
    """Refuse what only an allreduce can do.

    Raises:
        ValueError: the compressor is for links.
    """
    if link_format_of(compression) is not LinkFormat.AS_SET:
        name = link_format_of(compression).name.lower()
        raise ValueError(f"{title}: compression={name} needs an allreduce; use none, fp16 or bf16")


class CastCompressor(Compressor):
    """Sends tensors in the dtype ``wire_dtype``; a framework says how it casts, and what.

    Attributes:
        wire_dtype: what travels.
        is_cast: whether a tensor is cast; others pass unchanged.
        cast: a tensor in another dtype; by default its ``astype``.
    """

    wire_dtype: Any
    is_cast: Callable[[Any], bool]
    cast: Callable[[Any, Any], Any] = staticmethod(lambda array, dtype: array.astype(dtype))

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
        example = compression if compression in (*LINK_FORMATS, "fp16", "bf16") else "int8"
        if compression in ("powersgd", "topk"):
            example = f"{compression}()"
        raise ValueError(
            f"compression must be a Compressor such as hvd.Compression.{example}, found "
            f"{reprlib.repr(compression)}"
        )


def check_rounds(compression: Any, sharded: Any) -> None:
    """Refuse a compressor of several reductions that has to share its gradients, or is a class.

    Raises:
        ValueError: it has options and was not called, or needs whole gradients.
    """
    if isinstance(compression, type):
        raise not_called("DistributedOptimizer", compression)
    if sharded:
        raise ValueError(
            "DistributedOptimizer: sharded=True cannot be used with compression="
            f"{type(compression).__name__}, which needs whole gradients"
        )


def not_called(title: str, compression: type) -> ValueError:
    """For the class of a compressor with options, which was given to ``title``."""
    name = getattr(compression, "title", None)
    how = "" if name is None else f": hvd.Compression.{name}()"
    return ValueError(f"{title}: compression={compression.__name__} is a class; call it{how}")


def compress_all(compression: Any, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The tensors to send, and what ``decompress_all`` needs; ``ValueError`` without compressor."""
    check_compressor(compression)
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [wire for wire, _ in pairs], [context for _, context in pairs]


def decompress_all(compression: Any, wires: Sequence[Any], contexts: Sequence[Any]) -> list[Any]:
    """The received tensors in the forms that the originals had."""
    pairs = zip(wires, contexts, strict=True)
    return [compression.decompress(wire, context) for wire, context in pairs]
