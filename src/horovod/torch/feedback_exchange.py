"""The exchange of a compressor that remembers: some gradients travel as less than they are.

What it leaves out of a gradient comes back through the error of the next step. All batches of a
step are finished together, and errors change only if every number came out finite: so a step that
a gradient scaler leaves out leaves no trace.

Ranks with different compressions send operations of different names, and would wait for each other.
So at first an exchange sends its settings in place of gradients, under the names that these have
without it: the engine refuses ranks that are not alike. The gradients follow when all ranks are.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from horovod.core.collectives import common_past
from horovod.core.compression import FeedbackCompressor, LinkFormat, compression_text
from horovod.core.handles import wait_for_all
from horovod.core.operations import Average, Intent, check_summing
from horovod.core.process_sets import ProcessSet
from horovod.errors import HorovodInternalError, MismatchError
from horovod.torch import adapter
from horovod.torch.gradient_exchange import Operation, with_compression

# Of what settings travel as, by which users can tell them apart: see ``with_compression``.
_SETTINGS_DTYPES = {"topk": torch.uint8, "powersgd": torch.int8}

_MEAN: Operation = (Average, 1.0, 1.0)


class Compressed(Protocol):
    """A gradient that travels as something else, in one step."""

    def remember(self) -> None:
        """Store what the next step needs; before ``write``, which may reuse the storage."""

    def write(self) -> None:
        """Put the reduced gradient in place."""


C = TypeVar("C", bound=Compressed)


class Batch(Generic[C]):
    """The tensors of one ``start``."""

    def __init__(self, exchange: FeedbackExchange[C], names: list[str], prefix: str = "") -> None:
        self._exchange = exchange
        self.names = names
        self.prefix = prefix
        self.compressed: list[C] = []
        self.plain: list[tuple[Tensor, Tensor]] = []  # gradient, what travels of it
        self.plain_names: list[str] = []
        self.held: Sequence[str] = ()  # names of settings under way, before anything is sent
        self.gradients: list[Tensor] = []  # those that wait for settings
        self.handles: list[int] = []
        self.results: list[Any] = []  # of the handles

    def finish(self) -> None:
        """Finish all batches that were started: ranks may have batched differently."""
        self._exchange.finish()

    def drop(self) -> None:
        """Forget all batches that were started, and what they would leave out."""
        self._exchange.drop()


class FeedbackExchange(Generic[C]):
    """An optimizer's exchange; a subclass says what is compressed, and how.

    Args:
        compressor: the same with equal options on every rank.
        operation: op, ``Average`` or ``Sum``, else ``ValueError``; prescale and postscale.
        process_set: the ranks that reduce; this one is among them.
    """

    def __init__(
        self, compressor: FeedbackCompressor, operation: Operation, process_set: ProcessSet
    ) -> None:
        check_summing(operation[0], compressor.title)
        self._title, self._text = compressor.title, compression_text(compressor)
        self._operation = operation
        self._process_set = process_set
        self._batches: list[Batch[C]] = []  # started, not finished
        self._alike: set[str] = set()  # names under which all ranks have sent the same settings
        self._alike_since = common_past()

    def _plan(self, name: str, gradient: Tensor) -> C | None:
        """``gradient`` to compress in this step; None: it travels as it is."""
        raise NotImplementedError

    def _agree(self, names: list[str]) -> None:
        """Before these are sent again after a ``join``: agree on what plans depend on; blocks."""

    def _begin(self, batch: Batch[C]) -> None:
        """Start to send the compressed ones; their handles are the batch's first."""
        raise NotImplementedError

    def _complete(self, batches: list[Batch[C]]) -> list[Tensor]:
        """After a first round: do the rest; numbers that are finite if the gradients are."""
        raise NotImplementedError

    @torch.no_grad()
    def start(
        self,
        names: list[str],
        gradients: list[Tensor],
        prefix: str = "",
        instead_of: Sequence[str] = (),
    ) -> Batch[C]:
        """Start to reduce ``gradients`` in place; computes, but waits for no other rank.

        Args:
            names: by which errors are kept, and some gradients left exact.
            prefix: begins the names of the operations.
            instead_of: full names of the allreduces that a rank with a ``PlainExchange`` has for
                this batch; none: all ranks are known to have equal settings.

        Raises:
            ValueError: a gradient is sparse, or does not fit what is remembered of it.
            HorovodInternalError: a rank was lost.
        """
        batch = Batch(self, names, prefix)
        for pair in zip(names, gradients, strict=True):
            _check_dense(self._title, *pair)
        self._batches.append(batch)
        try:
            if self._are_alike(instead_of):
                self._fill(batch, gradients)
                self._send(batch)
            else:
                batch.gradients = gradients
                self._send_settings(batch, instead_of)
        except Exception:  # torch's, too, such as one of memory
            self._abandon(batch)
            raise
        return batch

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for all that was started, and write it back; without a batch, do nothing.

        Raises:
            MismatchError: another rank has another compression, or other options.
            HorovodInternalError: a reduction failed; all others have ended.
        """
        batches, self._batches = self._batches, []
        try:
            self._send_held([batch for batch in batches if batch.held])
        finally:
            _wait_for_all(batches)
        numbers = self._complete(batches)
        compressed = [each for batch in batches for each in batch.compressed]
        plain = [pair for batch in batches for pair in batch.plain]
        if compressed and _all_finite([*numbers, *(wire for _, wire in plain)]):
            for each in compressed:
                each.remember()
        for each in compressed:
            each.write()
        for gradient, wire in plain:
            if wire is not gradient:
                gradient.copy_(wire)

    def drop(self) -> None:
        """Wait for all that was started, and forget it; errors stay as they were."""
        batches, self._batches = self._batches, []
        with suppress(HorovodInternalError):
            _wait_for_all(batches)

    def _fill(self, batch: Batch[C], gradients: list[Tensor]) -> None:
        for name, gradient in zip(batch.names, gradients, strict=True):
            compressed = self._plan(name, gradient)
            if compressed is not None:
                batch.compressed.append(compressed)
            else:
                batch.plain.append((gradient, gradient.resolve_conj().contiguous()))
                batch.plain_names.append(batch.prefix + name)

    def _are_alike(self, names: Sequence[str]) -> bool:
        """Whether all ranks are known to have equal settings; all ranks get the same answer."""
        if self._alike_since != common_past():
            self._alike_since = common_past()
            self._alike.clear()
        return self._alike.issuperset(names)

    def _send_settings(self, batch: Batch[C], names: Sequence[str]) -> None:
        """Send no bytes, in a shape that no other settings have."""
        batch.held = names
        shape = (0, zlib.crc32(self._text.encode()))
        settings = torch.empty(shape, dtype=_SETTINGS_DTYPES[self._title], device="cpu")
        self._allreduce(batch, [settings] * len(names), list(names))

    def _send_held(self, batches: list[Batch[C]]) -> None:
        try:
            _wait_for_all(batches)
        except MismatchError as error:
            raise with_compression(error, self._text) from None
        if batches:
            self._agree([name for batch in batches for name in batch.names])
        for batch in batches:
            self._alike.update(batch.held)
            batch.handles.clear()
            self._fill(batch, batch.gradients)
            self._send(batch)

    def _send(self, batch: Batch[C]) -> None:
        self._begin(batch)
        wires = [wire for _, wire in batch.plain]
        self._allreduce(batch, wires, batch.plain_names, self._operation)

    def _abandon(self, batch: Batch[C]) -> None:
        """Forget a batch that was refused, perhaps in part: a later ``finish`` must not want it."""
        self._batches.remove(batch)
        with suppress(HorovodInternalError):
            _wait_for_all([batch])

    def _allreduce(
        self,
        batch: Batch[C],
        tensors: list[Tensor],
        names: list[str],
        operation: Operation = _MEAN,
        intent: Intent = Intent.COMPUTE,
    ) -> None:
        if tensors:
            options: Any = {"intent": intent, "process_set": self._process_set}
            options["link_format"] = LinkFormat.EXACT  # errors are of what is sent
            handle = adapter.allreduce_batch_async_(tensors, names, *operation, **options)
            batch.handles.append(handle)

    def _allreduce_now(
        self, tensors: list[Tensor], names: list[str], operation: Operation | None = None
    ) -> None:
        """Reduce further tensors, by default with the exchange's operation, and wait for them."""
        batch: Batch[C] = Batch(self, [])
        self._allreduce(batch, tensors, names, operation or self._operation, Intent.WAIT)
        _wait_for_all([batch])


def _check_dense(title: str, name: str, gradient: Tensor) -> None:
    if gradient.layout is not torch.strided:
        raise ValueError(
            f"Compression.{title} reduces dense gradients only, {name!r} is of layout "
            f"{gradient.layout}; an embedding gives dense ones with sparse=False, and sparse "
            "ones are reduced as dense ones with sparse_as_dense=True"
        )


def _wait_for_all(batches: Sequence[Batch[Any]]) -> None:
    """Wait for all that they sent, also after a failure; raises the first failure."""
    handles = [handle for batch in batches for handle in batch.handles]
    results = iter(wait_for_all(handles, adapter.synchronize))
    for batch in batches:
        batch.results = [next(results) for _ in batch.handles]


def _all_finite(tensors: list[Tensor]) -> bool:
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor.flatten())
    return all(bool(torch.cat(flat).isfinite().all()) for flat in by_device.values())
