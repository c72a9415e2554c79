"""What our TF1 optimizers share: they hold the user's, and hand on all but the gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradient_reduction import Reducer

__all__ = ["WrappedOptimizer"]


class WrappedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Base of the optimizers that ``DistributedOptimizer`` makes of TF1 optimizers."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, reduce: Reducer) -> None:
        super().__init__(use_locking, name)
        self._optimizer = optimizer
        self._reduce = reduce
        self._aggregation: LocalGradientAggregationHelper | None = None
        self._local_variables: list[Any] = []

    def aggregate(self, aggregation: LocalGradientAggregationHelper) -> None:
        """Apply gradients only when ``aggregation`` has added up those of enough passes."""
        self._aggregation = aggregation

    def register_local_var(self, var: Any) -> None:
        """Keep gradients of this variable on this rank; before gradients are computed."""
        self._local_variables.append(var)

    def reduce_sums(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Reduce what was added up over some passes."""
        return self._reduce(gradients, variables, self._local_variables)

    @not_converted
    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Apply gradients as the original does; reduces nothing.

        With ``backward_passes_per_step`` > 1 only every n-th pass changes variables; all of them
        advance ``global_step``.
        """
        pairs = list(grads_and_vars)
        if self._aggregation is None:
            return self._apply(pairs, global_step, name)
        done = self._aggregation.apply_gradients(
            pairs,
            lambda: self._apply(pairs, global_step, name),
            lambda: None if global_step is None else global_step.assign_add(1),
        )
        _make_train_op(done)
        return done

    def _apply(self, pairs: list[tuple[Any, Any]], global_step: Any, name: str | None) -> Any:
        return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """As the original."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """As the original."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """As the original."""
        return self._optimizer.variables(*args, **kwargs)


def _make_train_op(done: Any) -> None:
    """The original has listed what it made inside of a branch, which cannot be run alone."""
    if done is None:
        return
    train_ops = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    train_ops[:] = [op for op in train_ops if op.graph is done.graph]
    train_ops.append(done)
