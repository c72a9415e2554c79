"""Reduces the gradients of a step, for tapes, optimizers and Keras.

One node takes all dense gradients and starts one named operation for each. Groups are grouped
operations; rows (``tf.IndexedSlices``) are gathered. The same code runs eagerly, in
``tf.function`` and in TF1 graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from horovod.core.compression import check_compressor, link_format_of
from horovod.core.gradient_groups import Groups, check_groups, split_into_groups
from horovod.core.operations import check_predivide, resolve_op
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.tensorflow import collectives
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.reductions import (
    allreduce_sparse,
    check_sparse,
    grouped_allreduce_sparse,
    is_sparse,
    reduce_at,
)
from horovod.tensorflow.run_time import has_others, set_size
from horovod.tensorflow.variables import key_of, operation_names, unique_scope


@dataclass(eq=False)
class Reducer:
    """Reduces the gradients of a step; equal on all ranks.

    Attributes:
        name: of the operations. Each has the position of its gradient and the last part of its
            variable's name.
        device_dense, device_sparse: where to place the operations; "" leaves it to TensorFlow.
        compression: what travels; not applied to rows.
        sparse_as_dense: make ``tf.IndexedSlices`` dense before reducing.
        op: ``Average``, ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``.
        gradient_predivide_factor: gradients are divided by it before the sum and multiplied by
            ``factor / size`` after it.
        groups: a number of groups, lists of variables, or None.
        process_set: the ranks that reduce.
        scale_local_gradients: divide gradients of local variables by the set's size.
        use_generic_names: call operations ``grad_<position>``.

    Raises:
        ValueError: an argument is unusable.
    """

    name: str
    device_dense: str
    device_sparse: str
    compression: Any
    sparse_as_dense: bool
    op: int
    gradient_predivide_factor: float
    groups: Groups
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    use_generic_names: bool = False

    def __post_init__(self) -> None:
        check_compressor(self.compression)
        check_process_set(self.process_set)
        self.op = resolve_op(None, self.op)
        check_predivide(self.op, self.gradient_predivide_factor)
        self.groups = check_groups(self.groups, 0, key_of)
        factor = self.gradient_predivide_factor
        self._options: Any = (self.op, 1.0 / factor, factor)
        self._transfer = (self.device_dense, self.device_sparse, self.compression)
        self._link_format = link_format_of(self.compression)

    @not_converted
    def __call__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        local_variables: Iterable[Any] = (),
    ) -> list[Any]:
        """The reduced gradients, a list of the same length.

        A gradient is a dense tensor, ``tf.IndexedSlices`` or None, which stays None. Gradients of
        ``local_variables`` are not reduced. Every rank of the set has to call it with the same
        variables in the same order. Without others in the set, or outside of it, gradients come
        back as they are.
        """
        there = [position for position, found in enumerate(gradients) if found is not None]
        condition = has_others(self.process_set) if there else False
        if condition is False:
            return list(gradients)
        local = {key_of(variable) for variable in local_variables}
        names = self._names(variables)
        if condition is True:
            return self._reduce(gradients, variables, local, names)
        # In a branch XLA would not know the shape of rows made dense.
        given = [
            gradient if key_of(variable) in local else self._prepared(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        return _reduce_if(condition, lambda: self._reduce(given, variables, local, names), given)

    def _names(self, variables: Sequence[Any]) -> list[str]:
        if self.use_generic_names:
            scope = unique_scope("grad")
            return [f"{scope}_{position}" for position in range(len(variables))]
        return operation_names(unique_scope(self.name), variables)

    def _reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        local: set[int],
        names: Sequence[str],
    ) -> list[Any]:
        result = list(gradients)
        shared: list[int] = []
        for position, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is None:
                continue
            if key_of(variable) in local:
                result[position] = self._scaled(gradient)
            else:
                result[position] = self._prepared(gradient)
                shared.append(position)
        keys = {position: key_of(variables[position]) for position in shared}
        groups, single = split_into_groups(self.groups, keys, key_of)
        for number, group in enumerate(groups):
            self._reduce_group(result, group, f"{names[group[0]]}.group_{number}", names)
        self._reduce_singly(result, single, names)
        return result

    def _scaled(self, gradient: Any) -> Any:
        """A local gradient, scaled like an average."""
        if not self.scale_local_gradients:
            return gradient
        if not is_sparse(gradient):
            return gradient / set_size(self.process_set, gradient.dtype)
        values = gradient.values / set_size(self.process_set, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)

    def _prepared(self, gradient: Any) -> Any:
        if not is_sparse(gradient):
            return gradient
        if self.sparse_as_dense:
            return tf.convert_to_tensor(gradient)
        check_sparse(self.op)
        return gradient

    def _reduce_singly(
        self, result: list[Any], positions: Sequence[int], names: Sequence[str]
    ) -> None:
        def reduce_dense(packed: list[Any], at: Sequence[int]) -> list[Any]:
            names_at = [names[position] for position in at]
            options = (*self._options, self.process_set, self._link_format)
            return collectives.allreduce_batch(packed, names_at, *options)

        def reduce_rows(rows: list[Any], at: Sequence[int]) -> list[Any]:
            pairs = zip(rows, at, strict=True)
            return [allreduce_sparse(one, names[p], self.op, self.process_set) for one, p in pairs]

        reduce_at(result, positions, self._transfer, reduce_dense, reduce_rows)

    def _reduce_group(
        self, result: list[Any], positions: Sequence[int], name: str, names: Sequence[str]
    ) -> None:
        op, prescale, postscale = self._options
        sent = (False, self.process_set, self._link_format)

        def reduce_dense(packed: list[Any], at: Sequence[int]) -> list[Any]:
            members = [names[position] for position in at]
            return collectives.grouped_allreduce(
                packed, name, op, prescale, postscale, *sent, members
            )

        reduce_at(
            result,
            positions,
            self._transfer,
            reduce_dense,
            lambda rows, _: grouped_allreduce_sparse(rows, name, self.op, self.process_set),
        )


def _make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float,
    groups: Groups,
    process_set: ProcessSet = global_process_set,
) -> Callable[..., list[Any]]:
    """``Reducer`` as optimizers of others call it.

    The result is called as ``allreduce_grads(grads, vars=None, use_generic_names=False)``; without
    variables names are generic, and ``groups`` is a number or None.
    """
    transfer: Any = (name, device_dense, device_sparse, compression, sparse_as_dense)
    reduction: Any = (op, gradient_predivide_factor, groups, process_set)
    make: Any = partial(Reducer, *transfer, *reduction)

    @not_converted
    def allreduce_grads(
        grads: Sequence[Any], vars: Sequence[Any] | None = None, use_generic_names: bool = False
    ) -> list[Any]:
        reduce = make(use_generic_names=use_generic_names or vars is None)
        result: list[Any] = reduce(grads, grads if vars is None else vars)
        return result

    return allreduce_grads


def _reduce_if(
    condition: Any, reduce: Callable[[], list[Any]], gradients: Sequence[Any]
) -> list[Any]:
    """``reduce`` when the condition holds as the graph runs, else the gradients as they are."""
    layout: list[Any] = []

    def reduced() -> list[Any]:
        layout[:] = reduce()
        return _tensors_of(layout)

    def unreduced() -> list[Any]:
        return [tf.identity(tensor) for tensor in _tensors_of(gradients)]

    tensors = iter(tf.cond(condition, reduced, unreduced))
    return [_rebuilt(gradient, tensors) for gradient in layout]


def _tensors_of(gradients: Sequence[Any]) -> list[Any]:
    tensors: list[Any] = []
    for gradient in gradients:
        if is_sparse(gradient):
            tensors += [gradient.values, gradient.indices]
        elif gradient is not None:
            tensors.append(gradient)
    return tensors


def _rebuilt(gradient: Any, tensors: Any) -> Any:
    if gradient is None:
        return None
    if is_sparse(gradient):
        return tf.IndexedSlices(next(tensors), next(tensors), gradient.dense_shape)
    return next(tensors)
