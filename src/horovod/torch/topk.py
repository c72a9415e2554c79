"""Top-k: the largest elements of a gradient travel, the others wait in the error.

Stich, Cordonnier, Jaggi: Sparsified SGD with Memory (NeurIPS 2018). In each step, on each rank:

    total = gradient + error
    sent = the k elements of total with the largest magnitudes, and their indices
    gradient = sum or mean over ranks of sent, error = total without sent

Elements and indices of all ranks are gathered. Each rank adds them up in the order of the ranks, so
all get the same bits. Of an index the lower 16 bits travel, in rising order of the indices, after
the number of indices with the same upper bits, for each value of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from horovod.core.compression import LOW, LOW_BITS, TopKCompressor
from horovod.core.operations import Average
from horovod.core.process_sets import ProcessSet
from horovod.core.world import engine, rank
from horovod.errors import HorovodInternalError
from horovod.torch import adapter
from horovod.torch.error_feedback import RankErrors
from horovod.torch.feedback_exchange import Batch, FeedbackExchange
from horovod.torch.gradient_exchange import Operation

# Of a sample for the choice of the largest: the elements per sampled one, and how many of the
# largest are in it at least.
_MOST_STRIDE, _LEAST_SAMPLED = 61, 64


class TopK(TopKCompressor):
    """Sparsification with error feedback, for ``DistributedOptimizer`` and with local steps.

    The elements of a gradient with the largest magnitudes travel, with their indices. The rest is
    this rank's error, one more tensor of the gradient's size, which is in the optimizer's
    ``state_dict``. Options and errors are those of ``horovod.core.compression.TopKCompressor``.
    """

    def make_exchange(
        self, op: int, prescale: float, postscale: float, process_set: ProcessSet
    ) -> TopKExchange:
        """The exchange of one optimizer; ``op`` Average or Sum, else ``ValueError``."""
        return TopKExchange(self, (op, prescale, postscale), process_set)


class TopKErrors(RankErrors):
    """What was not sent, by name of the gradient; float32, of float64 gradients float64."""

    def note_rank(self) -> None:
        """From now on the errors are of this process' rank in this world."""
        self._rank = rank()

    def of(self, name: str, gradient: Tensor) -> Tensor:
        """The error of a gradient, where the gradient is; zeros at first."""
        error = self._errors.get(name)
        if error is None or error.shape != gradient.shape:  # that was another model's
            error = torch.zeros(gradient.shape, device=gradient.device)
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        self._errors[name] = error = error.to(gradient.device, dtype)
        return error


@dataclass
class _Elements:
    """A gradient of which some elements travel, in one step."""

    name: str
    gradient: Tensor
    error: Tensor
    total: Tensor  # gradient + error, flat, in the gradient's own storage where possible
    sent: Tensor  # rising indices of this rank's elements
    kept: Tensor  # these elements as they travel
    factor: float  # of the sum
    values: tuple[Tensor, ...] = ()  # of each rank
    indices: tuple[Tensor, ...] = ()

    def remember(self) -> None:
        error = self.error.view(-1).copy_(self.total)
        error.index_add_(0, self.sent, self.kept.to(error.dtype), alpha=-1)

    def write(self) -> None:
        self.total.zero_()
        # One rank after the other: a rank's indices differ, so no order is left to chance.
        for indices, values in zip(self.indices, self.values, strict=True):
            self.total.index_add_(0, indices, values.to(self.total.dtype))
        if self.factor != 1.0:
            self.total.mul_(self.factor)
        if self.total.data_ptr() != self.gradient.data_ptr():
            self.gradient.copy_(self.total.view(self.gradient.shape))


class TopKExchange(FeedbackExchange[_Elements]):
    """An optimizer's exchange with its errors.

    Attributes:
        feedback: the errors.
    """

    def __init__(self, compressor: TopK, operation: Operation, process_set: ProcessSet) -> None:
        super().__init__(compressor, operation, process_set)
        self._compressor = compressor
        self.feedback = TopKErrors()

    def with_same_errors(self) -> TopKExchange:
        """Another exchange of the same optimizer, whose batches are finished by themselves."""
        found = TopKExchange(self._compressor, self._operation, self._process_set)
        found.feedback = self.feedback
        return found

    def start_group(
        self, name: str, gradients: list[Tensor], members: Sequence[str]
    ) -> Batch[_Elements]:
        """Begin to reduce gradients in place; see ``start``."""
        return self.start(list(members), gradients, f"{name}.")

    def _plan(self, name: str, gradient: Tensor) -> _Elements | None:
        elements = gradient.numel()
        is_float = gradient.dtype.is_floating_point
        if not elements or not is_float or engine().is_exact(name, elements):
            return None
        error = self.feedback.of(name, gradient)
        total = gradient.contiguous().to(error.dtype).view(-1).add_(error.view(-1))
        sent = largest(total.abs(), self._compressor.count(elements)).sort().values
        kept = total[sent]
        if self._compressor.half:
            kept = kept.bfloat16()
        op, prescale, postscale = self._operation
        factor = prescale * postscale / (self._ranks() if op == Average else 1)
        return _Elements(name, gradient, error, total, sent, kept, factor)

    def _begin(self, batch: Batch[_Elements]) -> None:
        self.feedback.note_rank()
        if not batch.compressed:
            return
        values = [each.kept for each in batch.compressed]
        indices = [packed(each.sent, each.total.numel()) for each in batch.compressed]
        forms = [_form(each) for each in batch.compressed]
        name = f"{batch.prefix}{batch.compressed[0].name}.topk"
        tensors = [*values, *indices, *forms]
        handle = adapter.grouped_allgather_async(tensors, name, self._process_set)
        batch.handles.append(handle)

    def _complete(self, batches: list[Batch[_Elements]]) -> list[Tensor]:
        received, ranks = [], self._ranks()
        for batch in batches:
            parts = batch.results[0] if batch.compressed else ()
            count = len(batch.compressed)
            for position, each in enumerate(batch.compressed):
                values, indices = parts[position], parts[count + position]
                _take(each, values, indices, ranks)
                received.append(values)
        return received

    def _ranks(self) -> int:
        return self._process_set.size() or 1


def largest(magnitudes: Tensor, count: int) -> Tensor:
    """The indices of the ``count`` largest of a vector, NaN before all others; in no order.

    A sample tells about how large these are. Then there are few candidates to choose from, which
    is several times as fast. If the sample misleads, the choice is from all.
    """
    stride = min(_MOST_STRIDE, count // _LEAST_SAMPLED)
    if stride < 2:
        return magnitudes.topk(count, sorted=False).indices
    sample = magnitudes[::stride]
    above = count // stride * 5 // 4  # somewhat more than there are among the largest
    bound = sample.topk(min(above, len(sample)), sorted=False).values.min()
    candidates = (magnitudes <= bound).logical_not_().nonzero().view(-1)  # NaN, too
    if len(candidates) < count:
        return magnitudes.topk(count, sorted=False).indices
    chosen: Tensor = candidates[magnitudes[candidates].topk(count, sorted=False).indices]
    return chosen


def packed(indices: Tensor, elements: int) -> Tensor:
    """Rising indices of a vector of so many elements as int16; see the top of this file."""
    counts = torch.bincount(indices >> LOW_BITS, minlength=_blocks(elements))
    low = (indices & LOW).to(torch.int16)
    return torch.cat([counts.to(torch.int32).view(torch.int16), low])


def unpacked(parts: Tensor, elements: int) -> Tensor | None:
    """The reverse of ``packed``; None if it cannot be that of such a vector."""
    blocks = _blocks(elements)
    # A copy: int32 begin at even places only.
    counts, low = parts[: 2 * blocks].clone().view(torch.int32), parts[2 * blocks :]
    if int(counts.min()) < 0 or int(counts.sum()) != low.numel():
        return None
    high = torch.repeat_interleave(torch.arange(blocks, device=parts.device), counts)
    indices = (high << LOW_BITS) + (low.long() & LOW)
    return indices if int(indices.max()) < elements else None


def _blocks(elements: int) -> int:
    return -(-elements >> LOW_BITS)


def _form(each: _Elements) -> Tensor:
    """No bytes. Its shape makes the engine refuse ranks that have other shapes or options.

    Elements and indices alone would not tell: ranks may gather different numbers of them.
    """
    shape = (0, each.sent.numel(), *each.gradient.shape)
    return each.sent.new_empty(shape, dtype=torch.uint8)


def _take(each: _Elements, values: Tensor, indices: Tensor, ranks: int) -> None:
    """Take over what all ranks have sent; ranks that have joined have sent nothing.

    What does not fit the gradient is refused: kernels do not check and would write elsewhere.
    """
    elements, count = each.total.numel(), each.sent.numel()
    width = 2 * _blocks(elements) + count
    senders = values.numel() // count
    sizes = values.numel(), indices.numel()
    if not 1 <= senders <= ranks or sizes != (senders * count, senders * width):
        raise HorovodInternalError(
            f"Compression.topk: {sizes[0]} elements with {sizes[1]} numbers for their indices came "
            f"for {each.name!r}, expected {count} with {width} of each of {ranks} ranks; ranks "
            "have gradients of different shapes, or different options"
        )
    each.values = values.chunk(senders)
    found = [unpacked(part, elements) for part in indices.chunk(senders)]
    each.indices = tuple(part for part in found if part is not None)
    if len(each.indices) < senders:
        raise HorovodInternalError(
            f"Compression.topk: indices came for {each.name!r} that are not of {elements} "
            "elements; ranks have gradients of different shapes, or the data was altered on its "
            "way, which HOROVOD_LINK_PROTECTION=integrity prevents"
        )
