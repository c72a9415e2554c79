"""Local gradient aggregation: gradients of several passes are added up before they are reduced.

Works eagerly, in ``tf.function`` and in TF1 graphs, with variables for the sums and the number of
passes. They are local variables in a TF1 graph: neither saved nor broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from horovod.core.operations import check_passes
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.reductions import is_sparse
from horovod.tensorflow.variables import key_of

__all__ = ["GradientAggregation", "LocalGradientAggregationHelper"]


class _Passes(NamedTuple):
    """The state of the passes over some variables."""

    keys: tuple[int, ...]
    count: Any  # int32 scalar: passes since the last reduction, then 0
    sums: list[Any]


class GradientAggregation:
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

        Only the former are meant to be applied, see ``apply_gradients``. Zeros, because code
        that inspects gradients, such as a loss scale, must see the same on all ranks.
        None stays None.

        Raises:
            ValueError: there are ``tf.IndexedSlices`` without ``sparse_as_dense``; or, when
                executing eagerly, other variables than in earlier passes of a step.
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

    def reset(self) -> None:
        """Forget the passes since the last reduction; the next one is a first one."""
        if tf.executing_eagerly():
            for passes in self._passes.values():
                passes.count.assign(0)

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
        """Replace the sums in the first pass, and add to them in the other passes."""
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
            _check_complete(known)
            with tf.init_scope():
                sums = [
                    _local_variable(tf.zeros(variable.shape, gradient.dtype))
                    for variable, gradient in zip(variables, gradients, strict=True)
                ]
                known = _Passes(keys, _local_variable(tf.constant(0)), sums)
            self._passes.update(dict.fromkeys(keys, known))
        return known


class LocalGradientAggregationHelper(GradientAggregation):
    """``GradientAggregation`` with the arguments that optimizers of others call it with.

    Args:
        backward_passes_per_step, allreduce_func, sparse_as_dense, average_aggregated_gradients: as
            for ``GradientAggregation``.
        rank, name: accepted; neither is needed.
        optimizer_type: what counts the passes that change nothing: the ``iterations`` of a Keras
            optimizer, or the ``global_step`` given to ``apply_gradients``.
        process_set, scale_local_gradients: gradients of variables given to ``register_local_var``
            are not reduced, and divided by the set's size if that is True.
    """

    OPTIMIZER_TYPE_KERAS = "optimizer_type_keras"
    OPTIMIZER_TYPE_LEGACY = "optimizer_type_legacy"
    _OPTIMIZER_TYPE_KERAS = OPTIMIZER_TYPE_KERAS
    _OPTIMIZER_TYPE_LEGACY = OPTIMIZER_TYPE_LEGACY

    def __init__(
        self,
        backward_passes_per_step: int,
        allreduce_func: Callable[[list[Any], list[Any]], list[Any]],
        sparse_as_dense: bool = False,
        average_aggregated_gradients: bool = False,
        rank: int | None = None,
        optimizer_type: str = OPTIMIZER_TYPE_KERAS,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        name: str = "",
    ) -> None:
        passes = backward_passes_per_step
        super().__init__(passes, self._reduce, sparse_as_dense, average_aggregated_gradients)
        self._allreduce_func = allreduce_func
        self._optimizer_type = optimizer_type
        self._process_set = process_set
        self._scale_local_gradients = scale_local_gradients
        self._local_variables: set[int] = set()

    def register_local_var(self, var: Any) -> None:
        """Keep the gradient of this variable on this rank."""
        self._local_variables.add(key_of(var))

    def apply_gradients(  # type: ignore[override]
        self, apply_grads_closure: Callable[[], Any], optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call ``apply_grads_closure`` in every n-th pass; in others count the pass.

        ``args`` and ``kwargs`` are what the optimizer's own ``apply_gradients`` was called with: a
        list of gradients and variables, and for TF1 optimizers perhaps the global step.
        """
        pairs = args[0] if args else kwargs["grads_and_vars"]
        step: Any = getattr(optimizer, "iterations", None)
        if self._optimizer_type == self.OPTIMIZER_TYPE_LEGACY:
            step = args[1] if len(args) > 1 else kwargs.get("global_step")
        skip = None if step is None else lambda: step.assign_add(1)
        return super().apply_gradients(pairs, apply_grads_closure, skip)

    def _reduce(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        result = list(gradients)
        is_local = [key_of(variable) in self._local_variables for variable in variables]
        shared = [position for position, is_own in enumerate(is_local) if not is_own]
        reduced = self._allreduce_func(
            [gradients[position] for position in shared],
            [variables[position] for position in shared],
        )
        for position, gradient in zip(shared, reduced, strict=True):
            result[position] = gradient
        if self._scale_local_gradients:
            for position in set(range(len(result))) - set(shared):
                result[position] /= self._process_set.size() or 1
        return result


def _check_complete(passes: _Passes | None) -> None:
    """``ValueError`` if these passes are not done; in a graph that is not known yet."""
    if passes is not None and tf.executing_eagerly() and int(passes.count) != 0:
        raise ValueError(
            "backward_passes_per_step > 1 needs gradients of the same variables in all passes of a "
            f"step; pass {int(passes.count) + 1} has others than those before"
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
