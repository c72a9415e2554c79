"""What a gradient compressor is, without a framework.

A compressor turns a tensor into what travels and back. Optimizer wrappers and ``allreduce`` of
every binding call it on the caller's thread, right before submission and right after completion.

A compressor that needs more than one collective per gradient, or remembers something of each, has
``make_exchange`` besides (``ExchangeMaker``). Optimizer wrappers then hand it whole batches.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Compressor", "Exchange", "ExchangeMaker", "NoneCompressor", "Pending"]


class Compressor:
    """Base of all compressors; derive from it and give both static methods.

    Every rank must use the same compressor: what ``compress`` returns is what is reduced, so its
    shape and dtype have to agree on all ranks.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and whatever ``decompress`` needs to undo this."""
        raise NotImplementedError("a Compressor must define compress(tensor) -> (tensor, context)")

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """The received tensor in the form that the original had."""
        raise NotImplementedError("a Compressor must define decompress(tensor, context) -> tensor")


class NoneCompressor(Compressor):
    """Sends every tensor as it is."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor


class Pending(Protocol):
    """A batch of gradients under way."""

    def finish(self) -> None:
        """Wait until the batch is reduced and written back in place.

        Raises:
            HorovodInternalError: a reduction failed; the gradients are unspecified.
        """


class Exchange(Protocol):
    """Reduces gradients of one optimizer over all ranks, in as many collectives as it needs.

    In a step every rank starts the same gradients, in any order and in any batches, all of them
    before it finishes the first batch.
    """

    def start(self, names: list[str], gradients: list[Any]) -> Pending:
        """Start to reduce ``gradients``; until the batch is finished they belong to the exchange.

        Args:
            names: one per gradient, unique and the same on every rank.
            gradients: dense, any shape; same shape and dtype on every rank.
        """


class ExchangeMaker(Protocol):
    """What a compressor offers that works on batches of gradients."""

    def make_exchange(
        self, op: int, prescale: float, postscale: float, process_set: Any
    ) -> Exchange:
        """An exchange that reduces with ``op`` over ``process_set``, scaling before and after.

        Raises:
            ValueError: the compressor cannot reduce with ``op``.
        """
