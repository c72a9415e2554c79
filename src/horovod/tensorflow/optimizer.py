"""``DistributedOptimizer``: a TF1 or Keras optimizer stepping on the gradients of all ranks.

A TF1 optimizer (``tf.compat.v1.train``) is wrapped by one that reduces in ``compute_gradients``.
Keras optimizers go to ``horovod.tensorflow.keras``, which is imported only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import tensorflow as tf

from horovod.core.gradient_groups import Groups, check_groups
from horovod.core.operations import Adasum, Average, check_passes, check_predivide, resolve_op
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import GradientAggregation
from horovod.tensorflow.gradient_reduction import Reducer
from horovod.tensorflow.variables import key_of

__all__ = ["DistributedOptimizer"]


class WrappedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Base of the optimizers that ``DistributedOptimizer`` makes of TF1 optimizers.

    They wrap the user's, and pass on all but the gradients.
    """

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

    @not_converted
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The original's gradients, reduced over all ranks (not for Adasum), with their variables.

        Every rank has to make or call it with the same variables in the same order.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if self._aggregation is not None:
            gradients = self._aggregation.compute_gradients(gradients, variables)
        else:
            gradients = self.reduce_sums(gradients, variables)
        return list(zip(gradients, variables, strict=True))

    def reduce_sums(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Reduce gradients, or what was added up over some passes."""
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
    """Replace the training operation of a branch, which cannot run alone, by ``done``."""
    if done is None:
        return
    train_ops = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    train_ops[:] = [op for op in train_ops if op.graph is done.graph]
    train_ops.append(done)


class AdasumOptimizer(WrappedOptimizer):
    """A TF1 optimizer whose ``apply_gradients`` combines its effect with the other ranks'.

    Every rank makes the original step on its own gradients. The differences between the variables
    after and before it are reduced with Adasum, all in one batch, and added to where they started.
    Variables given to ``register_local_var`` keep what the original step makes of them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._starts: dict[int, Any] = {}  # where each variable started, by its key

    def reduce_sums(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Gradients stay as they are: what is reduced is their effect."""
        return gradients

    def _apply(self, pairs: list[tuple[Any, Any]], global_step: Any, name: str | None) -> Any:
        local = {key_of(variable) for variable in self._local_variables}
        shared = [
            variable
            for gradient, variable in pairs
            if gradient is not None and key_of(variable) not in local
        ]
        starts = [self._start_of(variable) for variable in shared]
        gradients = [gradient for gradient, _ in pairs if gradient is not None]
        with tf.control_dependencies(gradients):  # they are made from the variables as they were
            kept = [
                start.assign(variable.read_value())
                for start, variable in zip(starts, shared, strict=True)
            ]
        with tf.control_dependencies(_operations(kept)):
            stepped = super()._apply(pairs, global_step, name)
        with tf.control_dependencies(_operations([stepped])):
            befores = [start.read_value() for start in starts]
            changes = [
                variable.read_value() - before
                for variable, before in zip(shared, befores, strict=True)
            ]
        combined = self._reduce(changes, shared)
        moved = [
            variable.assign(before + change)
            for variable, before, change in zip(shared, befores, combined, strict=True)
        ]
        return None if tf.executing_eagerly() else tf.group(stepped, *moved)

    def _start_of(self, variable: Any) -> Any:
        key = key_of(variable)
        if key not in self._starts:
            with tf.init_scope():
                self._starts[key] = tf.compat.v1.Variable(
                    tf.zeros(variable.shape, variable.dtype.base_dtype),
                    trainable=False,
                    collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                    # A resource would share the memory of a reference variable, in which the
                    # original step is made; an assignment between two of those copies.
                    use_resource=hasattr(variable, "handle"),
                    name="adasum_start",
                )
        return self._starts[key]


def _operations(made: list[Any]) -> list[Any]:
    """The operations that others can be made to wait for; none when executing eagerly."""
    if tf.executing_eagerly():
        return []
    return [one.op if hasattr(one, "op") else one for one in made if one is not None]


class _DistributedOptimizer(WrappedOptimizer):
    """A TF1 optimizer whose ``compute_gradients`` returns reduced gradients."""


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wrap an optimizer so that it steps on the gradients of all ranks.

    Every rank has to wrap the same kind of optimizer with equal options, train the same variables
    and start from equal values (``BroadcastGlobalVariablesHook``, ``broadcast_variables``).

    Args:
        optimizer: a ``tf.compat.v1.train.Optimizer`` or a Keras optimizer.
        name: of the result and its operations; ``Distributed<class name>`` by default.
        use_locking: accepted for TF1 optimizers; the given one decides about its own locks.
        device_dense, device_sparse: where to place operations on dense gradients, on rows; ""
            leaves it to TensorFlow.
        compression: what travels, for example ``Compression.fp16``; not applied to rows.
        sparse_as_dense: make rows (``tf.IndexedSlices``) dense and reduce that. Otherwise the rows
            of all ranks are gathered.
        backward_passes_per_step: n: gradients of n passes are added up on each rank, then reduced
            and applied; the other passes only count in ``global_step`` or ``iterations``.
        op: ``Average``, ``Sum``, or for TF1 optimizers ``Adasum``, which makes the original step on
            this rank's gradients and reduces what it changed.
        gradient_predivide_factor: splits the averaging: gradients are divided by it before the sum
            and multiplied by ``factor / size`` after it; only with ``Average``.
        average_aggregated_gradients: divide what was added up by n.
        num_groups: deprecated, use ``groups``.
        groups: gradients of a group are reduced as one operation. A number > 0: they are split
            evenly in so many groups. Lists of variables: those groups, the others one by one.
        process_set: the ranks that reduce; others step on their own gradients.
        scale_local_gradients: divide gradients of variables given to ``register_local_var``, which
            are not reduced, by the set's size.

    Returns:
        For a TF1 optimizer an optimizer that reduces in ``compute_gradients`` and so in
        ``minimize``; for a Keras optimizer what
        ``horovod.tensorflow.keras.DistributedOptimizer`` returns.

    Raises:
        ValueError: an argument or a combination of arguments is unusable.
        NotImplementedError: Adasum with another process set than the global one.
    """
    op = resolve_op(None, op)
    check_predivide(op, gradient_predivide_factor)
    if op == Adasum and average_aggregated_gradients:
        raise ValueError("average_aggregated_gradients does not work with op=Adasum")
    if op == Adasum and process_set is not global_process_set:
        raise NotImplementedError("op=Adasum works with the global process set only")
    check_passes(backward_passes_per_step)
    chosen: Groups = check_groups(groups, num_groups, key_of)
    options: dict[str, Any] = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "groups": chosen,
        "process_set": process_set,
        "scale_local_gradients": scale_local_gradients,
        "backward_passes_per_step": backward_passes_per_step,
        "average_aggregated_gradients": average_aggregated_gradients,
    }
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        kind = AdasumOptimizer if op == Adasum else _DistributedOptimizer
        return kind(optimizer, name, use_locking, **options)
    if not _is_keras_optimizer(optimizer):
        raise ValueError(
            "DistributedOptimizer: optimizer must be a tf.compat.v1.train.Optimizer or a Keras "
            f"optimizer, found {optimizer!r}"
        )
    if op == Adasum:
        raise ValueError("DistributedOptimizer: op=Adasum does not work with Keras optimizers")
    keras = import_module("horovod.tensorflow.keras")
    return keras.DistributedOptimizer(optimizer, name=name, **options)


def _is_keras_optimizer(optimizer: Any) -> bool:
    """By the names of its classes: the packages of Keras are many, and slow to import."""
    return any(
        kind.__name__ in ("Optimizer", "OptimizerV2", "BaseOptimizer", "_BaseOptimizer")
        and "keras" in kind.__module__
        for kind in type(optimizer).__mro__
    )
