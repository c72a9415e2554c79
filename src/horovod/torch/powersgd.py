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

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from horovod.core import world
from horovod.core.compression import PowerSGDCompressor
from horovod.core.operations import Max
from horovod.core.process_sets import ProcessSet
from horovod.torch.feedback_exchange import Batch, FeedbackExchange
from horovod.torch.gradient_exchange import Operation

_MOST: Operation = (Max, 1.0, 1.0)


class PowerSGD(PowerSGDCompressor):
    """Low-rank compression with error feedback, for ``DistributedOptimizer`` only.

    A gradient ``[n, ...]`` is seen as a matrix ``[n, m]``; ``rank * (n + m)`` numbers travel in
    place of ``n * m``. Vectors, small matrices and integers travel as they are. Every rank keeps
    its error, one more tensor of the gradient's size, and needs options equal to the others'. One
    object serves one optimizer, or several whose parameters have different names. The memory
    belongs to the world: ``init`` after ``shutdown`` starts anew, unless ``load_state_dict`` came
    between. Options and errors are those of ``horovod.core.compression.PowerSGDCompressor``.
    """

    _generation: int | None = None  # of the world that the memory belongs to

    @cached_property
    def _memories(self) -> dict[str, _Memory]:
        return {}

    def make_exchange(
        self, op: int, prescale: float, postscale: float, process_set: ProcessSet
    ) -> PowerSGDExchange:
        """The exchange of one optimizer; ``op`` Average or Sum, else ``ValueError``."""
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
        is_float = gradient.dtype.is_floating_point
        found = self.matrix_of(gradient.shape) if is_float else None
        if found is None or memory.steps < self._start_after:
            return None
        rows, columns, rank = found
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        matrix = gradient.contiguous().to(dtype).view(rows, columns)
        q, error = memory.q, memory.error
        if q is None or error is None:
            q = _first_q(self.seed_of(name), columns, rank).to(matrix)
        elif q.shape != (columns, rank) or error.shape != matrix.shape or error.dtype != dtype:
            raise ValueError(
                f"powersgd: the memory of {name!r} is for rank {q.shape[1]} of a {error.dtype} "
                f"matrix {list(error.shape)}; its gradient needs rank {rank} of a {dtype} matrix "
                f"{[rows, columns]}"
            )
        else:
            q, error = q.to(matrix.device), error.to(matrix.device)  # of a file, perhaps elsewhere
            matrix.add_(error)
        return _Matrix(name, gradient, memory, matrix, matrix @ q, q, q)

    def enter_world(self) -> None:
        """Forget what belongs to another world: new ranks would not know it."""
        generation = world.generation()
        if self._generation not in (None, generation):
            self._memories.clear()
        self._generation = generation

    @property
    def counts(self) -> bool:
        """Whether it depends on the number of steps what travels."""
        return self._start_after > 0

    def steps_of(self, name: str) -> int:
        """How many steps a parameter has made."""
        return self._memories.setdefault(name, _Memory()).steps

    def set_steps(self, name: str, steps: int) -> None:
        """A parameter has made so many steps."""
        self._memories[name].steps = steps


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


class PowerSGDExchange(FeedbackExchange[_Matrix]):
    """An optimizer's exchange, over the memory of one ``PowerSGD``."""

    def __init__(self, compressor: PowerSGD, operation: Operation, process_set: ProcessSet) -> None:
        super().__init__(compressor, operation, process_set)
        self._compressor = compressor

    def _agree(self, names: list[str]) -> None:
        """Take over the others' numbers of steps: a rank that had joined has counted fewer.

        It would send a gradient uncompressed that the others compress, and all would wait.
        """
        compressor = self._compressor
        compressor.enter_world()
        if not compressor.counts:
            return
        steps = [torch.tensor(compressor.steps_of(name), device="cpu") for name in names]
        self._allreduce_now(steps, [f"{name}.powersgd_steps" for name in names], _MOST)
        for name, found in zip(names, steps, strict=True):
            compressor.set_steps(name, int(found))

    def _fill(self, batch: Batch[_Matrix], gradients: list[Tensor]) -> None:
        self._compressor.enter_world()
        super()._fill(batch, gradients)

    def _plan(self, name: str, gradient: Tensor) -> _Matrix | None:
        return self._compressor.plan(name, gradient)

    def _begin(self, batch: Batch[_Matrix]) -> None:
        matrices = batch.compressed
        self._allreduce(batch, [matrix.p for matrix in matrices], _named(matrices, "p"))

    def _complete(self, batches: list[Batch[_Matrix]]) -> list[Tensor]:
        matrices = [matrix for batch in batches for matrix in batch.compressed]
        shares = [matrix.project() for matrix in matrices]
        self._allreduce_now(shares, _named(matrices, "q"))
        for name in (name for batch in batches for name in batch.names):
            self._compressor.set_steps(name, self._compressor.steps_of(name) + 1)
        return shares


def _first_q(seed: int, columns: int, rank: int) -> Tensor:
    """Random orthonormal columns."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return _orthonormal(torch.randn(columns, rank, generator=generator, device="cpu"))


def _orthonormal(matrix: Tensor) -> Tensor:
    """Orthonormal columns that span at least ``matrix``'s, also where those are dependent or 0."""
    q: Tensor = torch.linalg.qr(matrix).Q
    return q


def _named(matrices: list[_Matrix], which: str) -> list[str]:
    return [f"{matrix.name}.powersgd_{which}" for matrix in matrices]
