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
from horovod.core.operations import Adasum, Average, check_predivide, resolve_op
from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.adasum_optimizer import AdasumOptimizer
from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import check_passes
from horovod.tensorflow.variables import key_of
from horovod.tensorflow.wrapped_optimizer import WrappedOptimizer

__all__ = ["DistributedOptimizer"]


class _DistributedOptimizer(WrappedOptimizer):
    """A TF1 optimizer whose ``compute_gradients`` returns reduced gradients."""

    @not_converted
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The original's gradients, reduced over all ranks, with their variables.

        Every rank has to make or call it with the same variables in the same order.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        if self._aggregation is not None:
            gradients = self._aggregation.compute_gradients(gradients, variables)
        else:
            gradients = self._reduce(gradients, variables, self._local_variables)
        return list(zip(gradients, variables, strict=True))


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
    _check(op, gradient_predivide_factor, average_aggregated_gradients, process_set)
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
    }
    passes: dict[str, Any] = {
        "backward_passes_per_step": backward_passes_per_step,
        "average_aggregated_gradients": average_aggregated_gradients,
    }
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        kind = AdasumOptimizer if op == Adasum else _DistributedOptimizer
        return kind(optimizer, name, use_locking, **options, **passes)
    if not _is_keras_optimizer(optimizer):
        raise ValueError(
            "DistributedOptimizer: optimizer must be a tf.compat.v1.train.Optimizer or a Keras "
            f"optimizer, found {optimizer!r}"
        )
    if op == Adasum:
        raise ValueError("DistributedOptimizer: op=Adasum does not work with Keras optimizers")
    keras = import_module("horovod.tensorflow.keras")
    return keras.DistributedOptimizer(optimizer, name=name, **options, **passes)


def _check(
    op: int,
    gradient_predivide_factor: float,
    average_aggregated_gradients: bool,
    process_set: ProcessSet,
) -> None:
    check_predivide(op, gradient_predivide_factor)
    if op != Adasum:
        return
    if average_aggregated_gradients:
        raise ValueError("average_aggregated_gradients does not work with op=Adasum")
    if process_set is not global_process_set:
        raise NotImplementedError("op=Adasum works with the global process set only")


def _is_keras_optimizer(optimizer: Any) -> bool:
    """By the names of its classes: the packages of Keras are many, and slow to import."""
    return any(
        kind.__name__ in ("Optimizer", "OptimizerV2", "BaseOptimizer", "_BaseOptimizer")
        and "keras" in kind.__module__
        for kind in type(optimizer).__mro__
    )
