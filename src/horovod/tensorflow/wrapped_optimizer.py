"""The base of TF1 optimizers here: they wrap the user's, and pass on all but the gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.core.gradient_groups import Groups
from horovod.core.operations import Average
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import GradientAggregation
from horovod.tensorflow.gradient_reduction import Reducer


class WrappedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Base of the optimizers that ``DistributedOptimizer`` makes of TF1 optimizers."""

    def __init__(
        self,
        optimizer: Any,
        name: str | None = None,
        use_locking: bool = False,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
        groups: Groups = None,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        """Meanings as in ``DistributedOptimizer``.

        Raises:
            ValueError: an argument or a combination of arguments is unusable.
        """
        if isinstance(optimizer, WrappedOptimizer):
            raise ValueError("DistributedOptimizer: this optimizer is distributed already")
        if backward_passes_per_step > 1 and tf.executing_eagerly():
            raise ValueError(
                "backward_passes_per_step > 1 with a tf.compat.v1.train optimizer needs a graph; "
                "use a Keras optimizer when executing eagerly"
            )
        name = name or f"Distributed{type(optimizer).__name__}"
        super().__init__(use_locking, name)
        self._optimizer = optimizer
        transfer = (device_dense, device_sparse, compression, sparse_as_dense)
        ranks: Any = (op, gradient_predivide_factor, groups, process_set, scale_local_gradients)
        self._reduce = Reducer(name, *transfer, *ranks)
        self._local_variables: list[Any] = []
        self._aggregation: GradientAggregation | None = None
        if backward_passes_per_step > 1:
            passes = backward_passes_per_step
            self._aggregation = GradientAggregation(
                passes, self.reduce_sums, sparse_as_dense, average_aggregated_gradients
            )

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
