"""TF1 optimizers with ``op=Adasum``: step alone first, then combine what changed.

Every rank makes the original step on its own gradients. The differences between the variables
after and before it are reduced with Adasum, all in one batch, and added to where they started.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.tensorflow.autograph import not_converted
from horovod.tensorflow.variables import key_of
from horovod.tensorflow.wrapped_optimizer import WrappedOptimizer


class AdasumOptimizer(WrappedOptimizer):
    """A TF1 optimizer whose ``apply_gradients`` combines its effect with the other ranks'.

    Variables given to ``register_local_var`` keep what the original step makes of them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._starts: dict[int, Any] = {}  # where each variable started, by its key

    @not_converted
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The original's gradients, of this rank alone, with their variables."""
        pairs: list[tuple[Any, Any]] = self._optimizer.compute_gradients(*args, **kwargs)
        if self._aggregation is None:
            return pairs
        gradients, variables = ([pair[position] for pair in pairs] for position in (0, 1))
        gradients = self._aggregation.compute_gradients(gradients, variables)
        return list(zip(gradients, variables, strict=True))

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
                start.assign(_value_of(variable))
                for start, variable in zip(starts, shared, strict=True)
            ]
        with tf.control_dependencies(_operations(kept)):
            stepped = super()._apply(pairs, global_step, name)
        with tf.control_dependencies(_operations([stepped])):
            befores = [start.read_value() for start in starts]
            changes = [
                _value_of(variable) - before
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
                    use_resource=True,
                    name="adasum_start",
                )
        return self._starts[key]


def _value_of(variable: Any) -> Any:
    return variable.read_value()


def _operations(made: list[Any]) -> list[Any]:
    """What operations can be made to wait for; eagerly there is nothing to wait for."""
    if tf.executing_eagerly():
        return []
    return [one.op if hasattr(one, "op") else one for one in made if one is not None]
