"""Distributed optimizers of Keras 3: gradients are reduced where they are applied.

All ways to train lead through ``apply``: ``fit``, ``train_on_batch``, ``apply_gradients`` and
``stateless_apply``. So a wrapped optimizer reduces whatever it is given, but for gradients that its
own ``_compute_gradients`` has returned. Gradients that a
``DistributedGradientTape`` has averaged are not changed by being averaged once more, which only
costs time; with ``op=Sum`` they would be multiplied by the number of ranks. Use one of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod._keras.aggregation import Aggregation, aggregation_for
from horovod._keras.optimizer_class import CallableList, DistributedOptimizerMixin

__all__ = ["Keras3Optimizer", "Keras3ScalingOptimizer"]

Pairs = list[tuple[Any, Any]]


class Keras3Optimizer(DistributedOptimizerMixin):
    """Comes before a class derived from ``keras.optimizers.Optimizer``."""

    _hvd_aggregation: Aggregation | None

    def _hvd_distribute(self) -> None:
        super()._hvd_distribute()
        self._hvd_aggregation = aggregation_for(self, self._hvd)

    def build(self, variables: Sequence[Any]) -> None:
        """As the original; also makes what local aggregation needs."""
        super().build(variables)  # type: ignore[misc]
        if self._hvd_aggregation is not None:
            self._hvd_aggregation.build(variables)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Reduce the gradients over all ranks, then update the variables as the original does.

        Every rank has to call it equally often, with gradients for the same variables.

        Args:
            grads: one per variable, or None.
            trainable_variables: the variables; default those that the optimizer was built with.
        """
        found = self._hvd_variables(grads, trainable_variables)
        if not found:
            super().apply(grads, trainable_variables)  # type: ignore[misc]
        elif self._hvd.take_back(grads):
            self._hvd_apply_reduced(list(grads), found)
        elif self._hvd_aggregation is None:
            self._hvd_apply_reduced(self._hvd_reduce(grads, found), found)
        else:
            self._hvd_aggregation.apply(list(grads), found)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        """As ``_compute_gradients``."""
        return self._compute_gradients(loss, var_list, tape=tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Pairs:
        """The gradients of all ranks with their variables, as in Keras 2.

        ``apply_gradients`` takes these very gradients as they are and reduces all others. With
        ``backward_passes_per_step`` > 1 they are those of this rank, and ``apply_gradients`` adds
        them up.

        Args:
            loss: a tensor that ``tape`` has recorded, or a function that computes one.
            var_list: variables, or a function that returns them; the same on every rank.
            grad_loss: gradient of the loss; ones by default.
            tape: a ``tf.GradientTape``.
        """
        variables = list(var_list() if callable(var_list) else var_list)
        given = {"grad_loss": grad_loss, "tape": tape}
        if hasattr(super(), "_compute_gradients"):
            pairs = super()._compute_gradients(loss=loss, var_list=variables, **given)  # type: ignore[misc]
            gradients = [gradient for gradient, _ in pairs]
        else:
            gradients = self._hvd.backend.compute_gradients(loss, variables, **given)
        if self._hvd_aggregation is None and self._hvd_variables(gradients, variables):
            gradients = self._hvd_reduce(gradients, variables)
            self._hvd.hand_out(gradients)
        return list(zip(gradients, variables, strict=True))

    def _hvd_apply_reduced(self, gradients: list[Any], variables: list[Any]) -> None:
        super().apply(gradients, variables)  # type: ignore[misc]

    def _hvd_variables(self, grads: Sequence[Any], given: Sequence[Any] | None) -> list[Any]:
        """The variables of the gradients; empty if the original has to refuse the call."""
        if given is not None:
            found = list(given)
            if not self.built:  # type: ignore[attr-defined]
                self.build(found)
        else:
            found = list(getattr(self, "_trainable_variables", ()))
        return found if len(found) == len(grads) else []

    def _hvd_reduce(self, grads: Sequence[Any], variables: list[Any]) -> list[Any]:
        return self._hvd.reduce(grads, variables, map(self._hvd_index, variables))

    def _hvd_index(self, variable: Any) -> int:
        index_of: dict[Any, int] = self._trainable_variables_indices  # type: ignore[attr-defined]
        return index_of.get(self._var_key(variable), -1)  # type: ignore[attr-defined]

    @property
    def variables(self) -> CallableList:
        """As the original; the list can also be called, as in Keras 2."""
        return CallableList(super().variables)  # type: ignore[misc]

    def save_own_variables(self, store: Any) -> None:
        """As the original, without what belongs to local aggregation: files stay loadable."""
        for number, variable in enumerate(self._hvd_saved_variables()):
            store[str(number)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """As the original; local aggregation starts anew."""
        saved = self._hvd_saved_variables()
        if len(store.keys()) != len(saved):
            super().load_own_variables(store)  # type: ignore[misc]
            return
        for number, variable in enumerate(saved):
            variable.assign(store[str(number)])

    def _hvd_saved_variables(self) -> list[Any]:
        if self._hvd_aggregation is None:
            return list(self.variables)
        own = {id(variable) for variable in self._hvd_aggregation.variables}
        return [variable for variable in self.variables if id(variable) not in own]


class Keras3ScalingOptimizer(Keras3Optimizer):
    """The same before ``LossScaleOptimizer``.

    It reduces first, so all ranks come to the same decision about infinite gradients. Its
    ``stateless_apply`` does not lead through ``apply``.
    """

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Reduce the gradients over all ranks, then go on as the original does."""
        reduced = self._hvd_reduce(grads, list(self._trainable_variables))  # type: ignore[attr-defined]
        return super().stateless_apply(  # type: ignore[misc]
            optimizer_variables, reduced, trainable_variables
        )
