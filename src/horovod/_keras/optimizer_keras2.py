"""Distributed optimizers of Keras 2: gradients are reduced where they are computed.

``fit`` and ``minimize`` call ``compute_gradients`` or ``_compute_gradients``, TF1 graphs call
``get_gradients``. ``apply_gradients`` does not reduce: users' own loops reduce by
``DistributedGradientTape``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from horovod._keras.optimizer_class import DistributedOptimizerMixin
from horovod.tensorflow.gradient_aggregation import GradientAggregation

Pairs = list[tuple[Any, Any]]


class _AnyKeras2Optimizer(DistributedOptimizerMixin):
    _hvd_aggregation: GradientAggregation | None

    def _hvd_distribute(self) -> None:
        super()._hvd_distribute()
        options = self._hvd.options
        self._hvd_aggregation = None
        if options.backward_passes_per_step > 1:
            self._hvd_aggregation = GradientAggregation(
                options.backward_passes_per_step,
                self._hvd_reduce,
                options.sparse_as_dense,
                options.average_aggregated_gradients,
            )

    def _hvd_reduce(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        self._hvd_check_clipping(variables)
        return self._hvd.reduce(gradients, variables, range(len(variables)))

    def _hvd_reduced(self, pairs: Iterable[tuple[Any, Any]]) -> Pairs:
        found = list(pairs)
        gradients = [gradient for gradient, _ in found]
        variables = [variable for _, variable in found]
        if self._hvd_aggregation is None:
            gradients = self._hvd_reduce(gradients, variables)
        else:
            gradients = self._hvd_aggregation.compute_gradients(gradients, variables)
        return list(zip(gradients, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """As the original, without a reduction; passes between steps are only counted.

        Every rank has to call it equally often.
        """
        pairs = list(grads_and_vars)
        if self._hvd_aggregation is None:
            return super().apply_gradients(pairs, *args, **kwargs)  # type: ignore[misc]
        apply = super().apply_gradients  # type: ignore[misc]
        iterations = self.iterations  # type: ignore[attr-defined]
        result = self._hvd_aggregation.apply_gradients(
            pairs, lambda: apply(pairs, *args, **kwargs), lambda: iterations.assign_add(1)
        )
        return iterations if result is None else result


class Keras2Optimizer(_AnyKeras2Optimizer):
    """Comes before a class derived from Keras 2's ``keras.optimizers.Optimizer``."""

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> Pairs:
        """The original's gradients, reduced over all ranks, with their variables."""
        pairs = super().compute_gradients(loss, var_list, tape)  # type: ignore[misc]
        return self._hvd_reduced(pairs)


class LegacyOptimizer(_AnyKeras2Optimizer):
    """Comes before a class derived from ``keras.optimizers.legacy.Optimizer``."""

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> Pairs:
        pairs = super()._compute_gradients(loss, var_list, grad_loss, tape)  # type: ignore[misc]
        return self._hvd_reduced(pairs)

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """The original's gradients in a TF1 graph, reduced over all ranks."""
        gradients = super().get_gradients(loss, params)  # type: ignore[misc]
        pairs = self._hvd_reduced(zip(gradients, params, strict=True))
        return [gradient for gradient, _ in pairs]
