"""Grouped collectives: several tensors as one operation, done whole or not at all.

A group is negotiated once, under one name: it runs when all its tensors are ready on all ranks, and
if ranks disagree about one of them, none is touched. Ranks must give the same tensors in the same
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from horovod.core.collectives import Collectives
from horovod.core.operations import (
    Average,
    Intent,
    Kind,
    full_name,
    make_allreduce,
    make_operation,
    make_reducescatter,
    resolve_op,
)
from horovod.core.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from horovod import _native

__all__ = ["GroupedCollectives"]

T = TypeVar("T")


class GroupedCollectives(Collectives[T]):
    """All collectives over one framework's tensors.

    ``tensors``: at least one, each as for the operation on a single tensor; dtypes and shapes may
    differ within the group. An empty group is an ``IndexError``.
    """

    def grouped_allreduce_async(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Like ``allreduce_async`` of every tensor; the result is a tuple of new tensors."""
        if average is not None:
            op = resolve_op(average, op)
        operation = make_allreduce(op, prescale_factor, postscale_factor, process_set)
        inputs = _group(tensors)
        outputs = [self._adapter.empty_like(tensor) for tensor in inputs]
        name = full_name("grouped_allreduce", name)
        return self._start_group(operation, name, inputs, outputs, self._given_all)

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Like ``grouped_allreduce_async``, with the results in the tensors themselves."""
        if average is not None:
            op = resolve_op(average, op)
        operation = make_allreduce(op, prescale_factor, postscale_factor, process_set)
        inputs = _group(tensors)
        name = full_name("grouped_allreduce", name)
        return self._start_group(operation, name, inputs, inputs, self._given_all)

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """New tensors with the reduced values; see ``grouped_allreduce_async``."""
        if average is not None:
            op = resolve_op(average, op)
        operation = make_allreduce(op, prescale_factor, postscale_factor, process_set)
        inputs = _group(tensors)
        outputs = [self._adapter.empty_like(tensor) for tensor in inputs]
        name = full_name("grouped_allreduce", name)
        return list(self._run_group(operation, name, inputs, outputs))

    def grouped_allreduce_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """Reduce the tensors in place, and return them; see ``grouped_allreduce_async``."""
        if average is not None:
            op = resolve_op(average, op)
        operation = make_allreduce(op, prescale_factor, postscale_factor, process_set)
        inputs = _group(tensors)
        name = full_name("grouped_allreduce", name)
        return list(self._run_group(operation, name, inputs, inputs))

    def grouped_allgather_async(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Like ``allgather_async`` of every tensor; the result is a tuple."""
        operation = make_operation(Kind.ALLGATHER, process_set)
        name = full_name("grouped_allgather", name)
        return self._start_group(operation, name, _group(tensors), None, self._allocated_all)

    def grouped_allgather(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> tuple[T, ...]:
        """Each tensor joined over all ranks; see ``allgather_async``."""
        operation = make_operation(Kind.ALLGATHER, process_set)
        name = full_name("grouped_allgather", name)
        return self._run_group(operation, name, _group(tensors), None)

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Like ``reducescatter_async`` of every tensor; the result is a tuple."""
        operation = make_reducescatter(op, prescale_factor, postscale_factor, process_set)
        name = full_name("grouped_reducescatter", name)
        return self._start_group(operation, name, _group(tensors), None, self._allocated_all)

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        op: int = Average,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[T]:
        """This rank's rows of each reduced tensor; see ``reducescatter_async``."""
        operation = make_reducescatter(op, prescale_factor, postscale_factor, process_set)
        name = full_name("grouped_reducescatter", name)
        return list(self._run_group(operation, name, _group(tensors), None))

    def _run_group(
        self,
        operation: _native.Operation,
        name: str | None,
        tensors: list[T],
        outputs: list[T] | None,
    ) -> tuple[T, ...]:
        finish = self._allocated_all if outputs is None else self._given_all
        handle = self._start_group(operation, name, tensors, outputs, finish, Intent.WAIT)
        result: tuple[T, ...] = self.synchronize(handle)
        return result


def _group(tensors: Sequence[T]) -> list[T]:
    group = list(tensors)
    if not group:
        raise IndexError("a grouped operation needs at least one tensor")
    return group
