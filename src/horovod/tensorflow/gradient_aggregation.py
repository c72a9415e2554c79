"""Local gradient aggregation: gradients of several passes are added up before they are reduced.

Works eagerly, in ``tf.function`` and in TF1 graphs, with variables for the sums and the number of
passes. They are local variables in a TF1 graph: neither saved nor broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.sparse import is_sparse
from horovod.tensorflow.variables import key_of

__all__ = ["LocalGradientAggregationHelper", "check_passes"]


@dataclass(frozen=True)
class _Passes:
    """The state of the passes over some variables."""

    keys: tuple[int, ...]
    count: Any  # int32 scalar: passes since the last reduction, then 0
    sums: list[Any]


class LocalGradientAggregationHelper:
    """Adds up the gradients of each pass, and reduces and applies them in every n-th one.

    Args:
        backward_passes_per_step: n > 0; the same on every rank.
        allreduce_func: ``allreduce_func(gradients, variables)`` returns reduced gradients, in
            order; called with dense tensors, once for each time that a graph is built.
        sparse_as_dense: make ``tf.IndexedSlices`` dense; otherwise they are refused.
        average_aggregated_gradients: divide the sums by n before they are reduced.

    Raises:
        ValueError: n is not positive.
    """

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], list[Any]],
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
    ) -> None:
        check_passes(backward_passes_per_step)
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self._allreduce = allreduce_func
        self._passes: dict[int, _Passes] = {}  # by each variable

    @not_converted
    def compute_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Add the gradients of a pass; returns reduced sums in every n-th pass, zeros in others.

        Only the former are meant to be applied, see ``apply_gradients``. Zeros, because whoever
        looks at gradients, as a loss scale does for infinite ones, must see the same on all ranks.
        None stays None.

        Raises:
            ValueError: there are ``tf.IndexedSlices`` without ``sparse_as_dense``.
        """
        there = [position for position, found in enumerate(gradients) if found is not None]
        if not there:
            return list(gradients)
        dense = [self._dense(gradients[position]) for position in there]
        chosen = [variables[position] for position in there]
        passes = self._passes_over(chosen, dense)
        added = self._add(passes, dense)
        with tf.control_dependencies(added):
            counted = (passes.count.read_value() + 1) % self.backward_passes_per_step
            count = tf.convert_to_tensor(passes.count.assign(counted))
        with tf.control_dependencies([count]):
            totals = tf.cond(
                tf.equal(count, 0),
                lambda: self._reduced(passes, chosen),
                lambda: [tf.zeros_like(own) for own in dense],
            )
        result = list(gradients)
        for position, total in zip(there, totals, strict=True):
            result[position] = total
        return result

    @not_converted
    def apply_gradients(
        self,
        grads_and_vars: Sequence[tuple[Any, Any]],
        apply: Callable[[], Any],
        skip: Callable[[], Any] | None = None,
    ) -> Any:
        """Run ``apply`` in every n-th pass, in others ``skip``, for example to count the pass.

        Args:
            grads_and_vars: the gradients that ``apply`` uses, made from what
                ``compute_gradients`` returned.
            apply, skip: make operations or run them; their results are not used.

        Returns:
            In a graph an operation; eagerly None.
        """
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars]
        found = [key_of(variable) for gradient, variable in pairs if gradient is not None]
        known = [self._passes[key] for key in found if key in self._passes]
        if not known:
            return apply()
        gradients = [gradient for gradient, _ in pairs if gradient is not None]
        with tf.control_dependencies(gradients):
            done = tf.cond(
                tf.equal(known[0].count.read_value(), 0),
                lambda: _after(apply()),
                lambda: _after(skip() if skip else None),
            )
        return None if tf.executing_eagerly() else done.op

    def _add(self, passes: _Passes, gradients: list[Any]) -> list[Any]:
        """Begin new sums in the first pass, whatever the last ones left; add to them in others."""
        pairs = list(zip(passes.sums, gradients, strict=True))
        added: list[Any] = tf.cond(
            tf.equal(passes.count.read_value(), 0),
            lambda: [tf.convert_to_tensor(sum_.assign(own)) for sum_, own in pairs],
            lambda: [tf.convert_to_tensor(sum_.assign_add(own)) for sum_, own in pairs],
        )
        return added

    def _reduced(self, passes: _Passes, variables: list[Any]) -> list[Any]:
        sums = [tf.identity(sum_.read_value()) for sum_ in passes.sums]
        if self.average_aggregated_gradients:
            sums = [total / self.backward_passes_per_step for total in sums]
        return self._allreduce(sums, variables)

    def _dense(self, gradient: Any) -> Any:
        if not is_sparse(gradient):
            return gradient
        if not self.sparse_as_dense:
            raise ValueError(
                "backward_passes_per_step > 1 cannot add up tf.IndexedSlices; use "
                "sparse_as_dense=True"
            )
        return tf.convert_to_tensor(gradient)

    def _passes_over(self, variables: Sequence[Any], gradients: Sequence[Any]) -> _Passes:
        keys = tuple(key_of(variable) for variable in variables)
        known = self._passes.get(keys[0])
        if known is None or known.keys != keys:
            with tf.init_scope():
                sums = [
                    _local_variable(tf.zeros(variable.shape, gradient.dtype))
                    for variable, gradient in zip(variables, gradients, strict=True)
                ]
                known = _Passes(keys, _local_variable(tf.constant(0)), sums)
            self._passes.update(dict.fromkeys(keys, known))
        return known


def check_passes(backward_passes_per_step: int) -> None:
    """``ValueError`` unless there is at least one backward pass per step."""
    if backward_passes_per_step <= 0:
        raise ValueError(
            f"backward_passes_per_step must be at least 1, found {backward_passes_per_step}"
        )


def _local_variable(initial: Any) -> Any:
    return tf.compat.v1.Variable(
        initial,
        trainable=False,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        use_resource=True,
        name="gradient_aggregation",
    )


def _after(made: Any) -> Any:
    """A tensor that is there once these operations have run."""
    if tf.executing_eagerly():
        return tf.constant(True)
    operations = [one for one in tf.nest.flatten(made) if one is not None]
    with tf.control_dependencies(operations):
        return tf.constant(True)
