"""Sends gradients that are ready: unchanged, compressed, or in rounds of a compressor's own.

``GradientReducer`` and the Adasum optimizer give whole batches, on the thread that runs backward or
waits in ``step``. An exchange keeps nothing of a batch except what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from horovod.core.compression import (
    Compressor,
    LinkFormat,
    compression_text,
    keeps_tensors,
    link_format_of,
)
from horovod.core.operations import Intent
from horovod.core.process_sets import ProcessSet
from horovod.errors import HorovodInternalError, MismatchError
from horovod.torch import adapter
from horovod.torch.error_feedback import ErrorFeedback, forget


class Pending(Protocol):
    """A batch under way."""

    def finish(self) -> None:
        """Wait for it; then the gradients it was made of hold the result.

        Raises:
            HorovodInternalError: the reduction failed; the gradients are unspecified.
        """


class PendingGroup(Pending, Protocol):
    """One that can be given up."""

    def drop(self) -> None:
        """Wait for it, and forget it: nothing that was sent counts, and no error is raised."""


class Exchange(Protocol):
    """Reduces batches in rounds of its own; made by an ``ExchangeCompressor``.

    One with an attribute ``feedback``, a ``RankErrors``, has its errors in the optimizer's state.
    """

    def start(self, names: list[str], gradients: list[Tensor]) -> Pending:
        """Begin to reduce dense gradients of any memory order in place.

        A batch has the same members in the same order on every rank. Batches may be started in
        different orders; all are started before one is finished, and they are finished in the same
        order on every rank.
        """


@runtime_checkable
class ExchangeCompressor(Protocol):
    """A compressor that needs more than one reduction, or keeps something per parameter."""

    def make_exchange(
        self, op: int, prescale: float, postscale: float, process_set: ProcessSet
    ) -> Exchange:
        """An exchange for one optimizer.

        Raises:
            ValueError: this compressor cannot reduce with this op.
        """


Compression = type[Compressor] | ExchangeCompressor
Operation = tuple[int, float, float]  # op, prescale, postscale


class _Copy(NamedTuple):
    """A gradient that travels as another tensor: compressed, or a contiguous copy."""

    gradient: Tensor
    wire: Tensor
    context: Any


_NO_COPIES: Sequence[_Copy] = ()


class _PlainPending(NamedTuple):
    handle: int
    copies: Sequence[_Copy]
    compression: type[Compressor]
    errors: Sequence[Tensor | None]
    compression_text: str  # for errors; empty: it is the same on all ranks

    def finish(self) -> None:
        try:
            adapter.synchronize(self.handle)
        except HorovodInternalError as error:
            forget(self.errors)
            if self.compression_text and isinstance(error, MismatchError):
                raise with_compression(error, self.compression_text, _UNLESS_SHAPES) from None
            raise
        if self.copies:
            self._copy_back()

    def drop(self) -> None:
        with suppress(HorovodInternalError):
            adapter.synchronize(self.handle)
        forget(self.errors)

    @torch.no_grad()
    def _copy_back(self) -> None:
        for gradient, wire, context in self.copies:
            reduced = self.compression.decompress(wire, context)
            if reduced is not gradient:
                gradient.copy_(reduced)


class PlainExchange:
    """Reduces each gradient by one allreduce of what the compressor makes of it.

    A compressor for links gets ``feedback``, which adds to gradients what it has left out of the
    last ones.

    Args:
        compression: what travels; the same on every rank.
        operation: reduce op, and what multiplies every gradient before and every result after the
            reduction; the same on every rank.
        process_set: the ranks that reduce; this one is among them.
        is_compared: ranks have found that their compressions are equal.
    """

    def __init__(
        self,
        compression: type[Compressor],
        operation: Operation,
        process_set: ProcessSet,
        is_compared: bool = False,
    ) -> None:
        self._compression = compression
        self._compression_text = "" if is_compared else compression_text(compression)
        self._is_plain = keeps_tensors(compression)
        self._link_format = link_format_of(compression)
        self._operation = operation
        self._process_set = process_set
        is_exact = self._link_format is LinkFormat.AS_SET
        self.feedback = None if is_exact else ErrorFeedback()

    def start(
        self,
        names: list[str],
        gradients: list[Tensor],
        intent: Intent = Intent.WAIT,
        are_regular: bool = False,
    ) -> Pending:
        """Begin to reduce gradients in place, each under its own full name.

        ``are_regular``: they are known to be contiguous, which saves looking again.
        """
        if self._is_plain and are_regular:
            wires, copies = gradients, _NO_COPIES
        else:
            wires, copies = self._wires(gradients)
        submit = partial(
            adapter.allreduce_batch_async_, wires, names, *self._operation, intent=intent
        )
        return self._submit(submit, names, wires, copies)

    def start_group(
        self, name: str, gradients: list[Tensor], members: Sequence[str] = ()
    ) -> PendingGroup:
        """Begin to reduce gradients in place as one operation, the same on every rank.

        ``members``: their names, which say what a low-bit format leaves exact; none: by size only.
        """
        wires, copies = self._wires(gradients)
        names = members or [f"{name}.{i}" for i in range(len(wires))]
        submit = partial(
            adapter.grouped_allreduce_async_, wires, None, name, *self._operation, members=members
        )
        return self._submit(submit, names, wires, copies)

    def _submit(
        self,
        submit: Callable[..., int],
        names: Sequence[str],
        wires: list[Tensor],
        copies: Sequence[_Copy],
    ) -> _PlainPending:
        errors: Sequence[Tensor | None] = ()
        if self.feedback is not None:
            errors = self.feedback.add_to(names, wires)
        try:
            handle = submit(
                process_set=self._process_set, link_format=self._link_format, errors=errors
            )
        except (ValueError, HorovodInternalError):
            forget(errors)
            raise
        return _PlainPending(handle, copies, self._compression, errors, self._compression_text)

    @torch.no_grad()
    def _wires(self, gradients: list[Tensor]) -> tuple[list[Tensor], Sequence[_Copy]]:
        """The tensor to send for each gradient, and those that are not the gradient itself.

        Ranks may keep a gradient in different memory orders; all send it in logical order.
        """
        if self._is_plain and are_in_order(gradients):
            return gradients, _NO_COPIES
        wires: list[Tensor] = []
        copies: list[_Copy] = []
        for gradient in gradients:
            if self._is_plain and are_in_order([gradient]):
                wires.append(gradient)
                continue
            wire, context = self._compression.compress(gradient)
            wires.append(wire.resolve_conj().contiguous())
            copies.append(_Copy(gradient, wires[-1], context))
        return wires, copies


def exchange_of(
    compression: Compression, operation: Operation, process_set: ProcessSet
) -> Exchange:
    """The exchange of an optimizer that sends all its tensors alike."""
    if isinstance(compression, ExchangeCompressor):
        return compression.make_exchange(*operation, process_set)
    return PlainExchange(compression, operation, process_set)


# An error has no data about what differs. Our compressions keep shapes.
_UNLESS_SHAPES = "if dtypes or numbers of tensors differ, compressions may, too: "


def with_compression(error: MismatchError, text: str, condition: str = "") -> MismatchError:
    """The same error, which says what compressions may have met.

    ``condition``: when they may be the cause; empty: they are compared.
    """
    return MismatchError(
        f"{error}; {condition}this rank has compression={text} ([0, n] stands for the options of "
        "topk, uint8, or powersgd, int8)",
        operation=error.operation,
    )


def are_in_order(gradients: list[Tensor]) -> bool:
    """Whether all are their memory, as nearly always; not so sparse ones and lazy conjugates."""
    try:
        return all(map(Tensor.is_contiguous, gradients)) and not any(map(Tensor.is_conj, gradients))
    except RuntimeError:  # how older torch versions answer for a sparse one
        return False
