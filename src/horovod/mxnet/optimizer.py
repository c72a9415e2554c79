"""``DistributedOptimizer``: any optimizer of MXNet on the gradients of all ranks."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from horovod.core.process_sets import ProcessSet, global_process_set
from horovod.mxnet.gradient_reduction import GradientReduction

__all__ = ["DistributedOptimizer"]

_OWN = ("_optimizer", "_reduction")


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Wraps an optimizer so that it updates with the mean of all ranks' gradients.

    For ``Module.fit(optimizer=..., kvstore=None)`` and hand-written updaters; with Gluon use
    ``DistributedTrainer``. Attributes are those of the wrapped optimizer, to read and to write.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Wrap an optimizer.

        Args:
            optimizer: any ``mx.optimizer.Optimizer``.
            gradient_predivide_factor: splits the averaging: gradients are divided by it before the
                sum and multiplied by ``factor / size`` after it.
            num_groups: gradients that are updated together are reduced in so many groups; 0: each
                for itself.
            process_set: the ranks that reduce; others update with their own gradients.

        Raises:
            ValueError: an argument is unusable.
        """
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise ValueError(
                "DistributedOptimizer: expected an mx.optimizer.Optimizer, found "
                f"{type(optimizer).__name__}"
            )
        self._optimizer = optimizer
        self._reduction = GradientReduction("", gradient_predivide_factor, num_groups, process_set)

    def __getattr__(self, name: str) -> Any:
        """Attributes that are not here are the wrapped optimizer's."""
        if name in _OWN:  # a copy that is being made
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is set here is set there."""
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        """For pickling: both objects of ours."""
        return {name: getattr(self, name) for name in _OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The way back."""
        for name in _OWN:
            setattr(self, name, state[name])

    def create_state(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state for a weight."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The wrapped optimizer's state for a weight of any precision."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average the gradients, in place, then update.

        Args:
            index: the weight's number, or a list of them; the same on all ranks.
            weight: the weight or weights.
            grad: their gradients.
            state: what ``create_state`` made of them.
        """
        self._reduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Like ``update``, where weights may have a copy of higher precision."""
        self._reduce(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Set the wrapped optimizer's learning rate."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Set the wrapped optimizer's multipliers of the learning rate."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Set the wrapped optimizer's multipliers of the weight decay."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, grad: Any) -> None:
        if not self._reduction.is_needed():
            return
        if isinstance(index, list | tuple):
            self._reduction.run(index, grad)
        else:
            self._reduction.run([index], [grad])
