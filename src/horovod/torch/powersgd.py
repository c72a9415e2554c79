"""PowerSGD: gradients as products of two thin matrices, with error feedback.

Vogels, Karimireddy, Jaggi: PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization (NeurIPS 2019), one step of subspace iteration per optimizer step:

    M = gradient + error          [rows, columns], on each rank
    P = orthonormal(mean of M Q)  [rows, rank], the same on all ranks
    Q = mean of (own = M^T P)     [columns, rank], the same on all ranks; starts the next step
    gradient = P Q^T, error = M - P own^T

What a step leaves out comes back through the error, so nothing is lost, only late. ``start`` sends
the first products while backward runs; ``finish`` does the rest, in one batch.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from horovod.core import world
from horovod.core.compression import Compressor, LinkFormat
from horovod.core.handles import wait_for_all
from horovod.core.operations import Average, Intent, Sum
from horovod.core.process_sets import ProcessSet
from horovod.torch import adapter


class PowerSGD(Compressor):
    """Low-rank compression with error feedback, for ``DistributedOptimizer`` only.

    A gradient ``[n, ...]`` is seen as a matrix ``[n, m]``; ``rank * (n + m)`` numbers travel in
    place of ``n * m``. Vectors, small matrices and integers travel as they are. Every rank keeps
    its error, one more tensor of the gradient's size, and needs options equal to the others'. One
    object serves one optimizer, or several whose parameters have different names. The memory
    belongs to the world: ``init`` after ``shutdown`` starts anew, unless ``load_state_dict`` came
    between.

    Args:
        rank: rank of the approximation; more is more exact and more to send. 1 to 4 is usual.
        start_after: steps of each parameter that go uncompressed first.
        min_compression_rate: a matrix is compressed only if that makes it so many times smaller.
        seed: of the first Q.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(
        self,
        rank: int = 4,
        *,
        start_after: int = 0,
        min_compression_rate: float = 2.0,
        seed: int = 0,
    ) -> None:
        if rank < 1:
            raise ValueError(f"powersgd: rank must be at least 1, found {rank}")
        if start_after < 0:
            raise ValueError(f"powersgd: start_after must be at least 0, found {start_after}")
        if not min_compression_rate > 0:
            raise ValueError(
                f"powersgd: min_compression_rate must be positive, found {min_compression_rate}"
            )
        self._rank = rank
        self._start_after = start_after
        self._min_rate = min_compression_rate
        self._seed = seed
        self._generation: int | None = None  # of the world that the memory belongs to
        self._memories: dict[str, _Memory] = {}

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Always a ``ValueError``: one tensor alone cannot be compressed before it is reduced."""
        raise ValueError(
            "Compression.powersgd takes several rounds and remembers errors: it works as "
            "DistributedOptimizer(compression=...), not with single operations; use "
            "Compression.none, fp16 or bf16 there"
        )

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Nothing to undo: ``compress`` never succeeds."""
        return tensor

    def make_exchange(
        self, op: int, prescale: float, postscale: float, process_set: ProcessSet
    ) -> PowerSGDExchange:
        """The exchange of one optimizer; ``op`` Average or Sum, else ``ValueError``."""
        if op not in (Average, Sum):
            raise ValueError(
                f"Compression.powersgd reduces with op=Average or op=Sum only, found op={op!r}"
            )
        return PowerSGDExchange(self, (op, prescale, postscale), process_set)

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """By parameter: steps, Q (equal on all ranks) and error (this rank's); not copied.

        Save it per rank. A rank that loads another's loses what its own errors held.
        """
        return {name: vars(memory).copy() for name, memory in self._memories.items()}

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on from ``state_dict``'s result; every rank has to load one of the same step."""
        self._memories = {name: _Memory(**entry) for name, entry in state.items()}
        self._generation = None

    def plan(self, name: str, gradient: Tensor) -> _Matrix | None:
        """``gradient`` as a matrix to compress in this step; None: it travels as it is."""
        memory = self._memories.setdefault(name, _Memory())
        if memory.steps < self._start_after or not self._pays(gradient):
            return None
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        matrix = gradient.contiguous().to(dtype).view(len(gradient), -1)
        rows, columns = matrix.shape
        rank = min(self._rank, rows, columns)
        q, error = memory.q, memory.error
        if q is None or error is None:
            q = _first_q(self._seed, name, columns, rank).to(matrix)
        elif q.shape != (columns, rank) or error.shape != matrix.shape or error.dtype != dtype:
            raise ValueError(
                f"powersgd: the memory of {name!r} is for rank {q.shape[1]} of a {error.dtype} "
                f"matrix {list(error.shape)}; its gradient needs rank {rank} of a {dtype} matrix "
                f"{[rows, columns]}"
            )
        else:
            matrix.add_(error)
        return _Matrix(name, gradient, memory, matrix, matrix @ q, q, q)

    def _pays(self, gradient: Tensor) -> bool:
        if gradient.dim() < 2 or not gradient.numel() or not gradient.dtype.is_floating_point:
            return False
        rows, columns = len(gradient), gradient.numel() // len(gradient)
        rank = min(self._rank, rows, columns)
        return rows * columns >= self._min_rate * rank * (rows + columns)

    def enter_world(self) -> None:
        """Forget what belongs to another world: new ranks would not know it."""
        generation = world.generation()
        if self._generation not in (None, generation):
            self._memories.clear()
        self._generation = generation

    def count_steps(self, names: list[str]) -> None:
        """These parameters have made a step."""
        for name in names:
            self._memories[name].steps += 1


@dataclass
class _Memory:
    """The memory of one parameter, which outlives a step."""

    steps: int = 0
    q: Tensor | None = None  # [columns, rank], orthonormal columns
    error: Tensor | None = None  # [rows, columns]


@dataclass
class _Matrix:
    """A gradient that travels as P and Q, in one step."""

    name: str
    gradient: Tensor
    memory: _Memory
    matrix: Tensor  # gradient + error, in the gradient's own storage where possible
    p: Tensor
    own_q: Tensor  # this rank's share of q
    q: Tensor  # the last step's, from ``project`` on this step's

    def project(self) -> Tensor:
        """Given the mean P: this rank's Q, to be reduced in place."""
        self.p = _orthonormal(self.p)
        self.own_q = self.matrix.t() @ self.p
        self.q = self.own_q.clone()
        return self.q

    def remember(self) -> None:
        """Store error and Q for the next step; before ``write``, which reuses the storage."""
        memory = self.memory
        if memory.error is None:
            memory.error = torch.empty_like(self.matrix)
        torch.addmm(self.matrix, self.p, self.own_q.t(), alpha=-1, out=memory.error)
        # Orthonormal, so that it neither vanishes nor grows with the gradients.
        memory.q = _orthonormal(self.q)

    def write(self) -> None:
        """Put the reduced gradient in place."""
        torch.mm(self.p, self.q.t(), out=self.matrix)
        if self.matrix.data_ptr() != self.gradient.data_ptr():
            self.gradient.copy_(self.matrix.view(self.gradient.shape))


class _Batch:
    """The tensors of one ``start``."""

    def __init__(self, exchange: PowerSGDExchange, names: list[str]) -> None:
        self._exchange = exchange
        self.names = names
        self.matrices: list[_Matrix] = []
        self.plain: list[tuple[Tensor, Tensor]] = []  # gradient, what travels of it
        self.handles: list[int] = []

    def finish(self) -> None:
        """Finish all batches that were started: ranks may have batched differently."""
        self._exchange.finish()


class PowerSGDExchange:
    """An optimizer's exchange, over the memory of one ``PowerSGD``."""

    def __init__(
        self, compressor: PowerSGD, operation: tuple[int, float, float], process_set: ProcessSet
    ) -> None:
        self._compressor = compressor
        self._operation = operation
        self._process_set = process_set
        self._batches: list[_Batch] = []  # started, not finished

    @torch.no_grad()
    def start(self, names: list[str], gradients: list[Tensor]) -> _Batch:
        """Start to reduce ``gradients`` in place; computes, but waits for no other rank.

        Raises:
            ValueError: a gradient is sparse, or does not fit what is remembered of it.
            HorovodInternalError: a rank was lost.
        """
        compressor = self._compressor
        compressor.enter_world()
        batch = _Batch(self, names)
        plain_names = []
        for name, gradient in zip(names, gradients, strict=True):
            _check_dense(name, gradient)
            matrix = compressor.plan(name, gradient)
            if matrix is not None:
                batch.matrices.append(matrix)
            else:
                batch.plain.append((gradient, gradient.contiguous()))
                plain_names.append(name)
        self._batches.append(batch)
        self._send(batch, [matrix.p for matrix in batch.matrices], _named(batch.matrices, "p"))
        self._send(batch, [wire for _, wire in batch.plain], plain_names, self._operation)
        return batch

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for all that was started, and write it back; without a batch, do nothing.

        The memory changes only if every number came out finite, so that a step which a gradient
        scaler leaves out leaves no trace.

        Raises:
            HorovodInternalError: a reduction failed; all others have ended.
        """
        batches, self._batches = self._batches, []
        _wait_for_all(batches)
        matrices = [matrix for batch in batches for matrix in batch.matrices]
        plain = [pair for batch in batches for pair in batch.plain]
        shares = [matrix.project() for matrix in matrices]
        last = _Batch(self, [])
        self._send(last, shares, _named(matrices, "q"), self._operation, Intent.WAIT)
        _wait_for_all([last])
        if matrices and _all_finite([*shares, *(wire for _, wire in plain)]):
            for matrix in matrices:
                matrix.remember()
        for matrix in matrices:
            matrix.write()
        for gradient, wire in plain:
            if wire is not gradient:
                gradient.copy_(wire)
        self._compressor.count_steps([name for batch in batches for name in batch.names])

    def _send(
        self,
        batch: _Batch,
        tensors: list[Tensor],
        names: list[str],
        operation: tuple[int, float, float] = (Average, 1.0, 1.0),
        intent: Intent = Intent.COMPUTE,
    ) -> None:
        if tensors:
            options: Any = {"intent": intent, "process_set": self._process_set}
            options["link_format"] = LinkFormat.EXACT  # errors are of the products that are sent
            handle = adapter.allreduce_batch_async_(tensors, names, *operation, **options)
            batch.handles.append(handle)


def _first_q(seed: int, name: str, columns: int, rank: int) -> Tensor:
    """Random orthonormal columns, the same on every rank whatever order parameters come in."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    return _orthonormal(torch.randn(columns, rank, generator=generator))


def _orthonormal(matrix: Tensor) -> Tensor:
    """Orthonormal columns that span at least ``matrix``'s, also where those are dependent or 0."""
    q: Tensor = torch.linalg.qr(matrix).Q
    return q


def _named(matrices: list[_Matrix], which: str) -> list[str]:
    return [f"{matrix.name}.powersgd_{which}" for matrix in matrices]


def _check_dense(name: str, gradient: Tensor) -> None:
    if gradient.layout is not torch.strided:
        raise ValueError(
            f"Compression.powersgd reduces dense gradients only, {name!r} is of layout "
            f"{gradient.layout}; an embedding gives dense ones with sparse=False"
        )


def _wait_for_all(batches: list[_Batch]) -> None:
    """Wait for all that they sent, also after a failure; raises the first failure."""
    wait_for_all([handle for batch in batches for handle in batch.handles], adapter.synchronize)


def _all_finite(tensors: list[Tensor]) -> bool:
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        by_device.setdefault(tensor.device, []).append(tensor.flatten())
    return all(bool(torch.cat(flat).isfinite().all()) for flat in by_device.values())
