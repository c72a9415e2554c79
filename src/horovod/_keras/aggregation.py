"""Local aggregation in Keras 3: gradients of several passes are added up before they are reduced.

Keras's own ``gradient_accumulation_steps`` would reduce in every pass, or clip what is not reduced
yet; it works beside this. ``iterations`` counts passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod._keras.library import backend_name
from horovod._keras.optimizer_class import Distribution

__all__ = ["Aggregation", "aggregation_for"]


def aggregation_for(optimizer: Any, distribution: Distribution) -> Aggregation | None:
    """What adds up the gradients of this optimizer; None if every pass is a step."""
    if distribution.options.backward_passes_per_step == 1:
        return None
    if backend_name(distribution.keras) == "jax":
        return JaxAggregation(optimizer, distribution)
    return Aggregation(optimizer, distribution)


class Aggregation:
    """Sums of gradients in variables of the optimizer, and every n-th pass a step.

    ``variables`` come last in the optimizer's and are no part of its saved state.
    """

    def __init__(self, optimizer: Any, distribution: Distribution) -> None:
        self._optimizer = optimizer
        self._distribution = distribution
        self._ops = distribution.keras.ops
        self._passes = distribution.options.backward_passes_per_step
        self._sums: list[Any] = []
        self._counter: Any = None

    @property
    def variables(self) -> list[Any]:
        """The sums, and the number of passes in them."""
        sums = [variable for variable in self._sums if variable is not None]
        return [*sums, self._counter] if self._counter is not None else []

    def build(self, variables: Sequence[Any]) -> None:
        """Make the sums, once."""
        if self._counter is not None:
            return
        self._sums = self._optimizer.add_optimizer_variables(variables, "aggregated_gradient")
        self._counter = self._optimizer.add_variable(
            shape=(), dtype="int", initializer="zeros", name="aggregated_passes"
        )

    def apply(self, gradients: list[Any], variables: list[Any]) -> None:
        """Add the gradients; in every n-th pass reduce the sums and make a step."""
        sums = self._sums_of(variables)
        for gradient, total in zip(gradients, sums, strict=True):
            if gradient is not None and total is not None:
                total.assign_add(self._dense(gradient))
        self._counter.assign_add(1)
        is_step = self._ops.equal(self._counter, self._passes)
        self._branch(is_step, lambda: self._step(gradients, variables, sums), self._skip)

    def _branch(self, is_step: Any, step: Callable[[], None], skip: Callable[[], None]) -> None:
        self._ops.cond(is_step, step, skip)

    def _step(self, gradients: list[Any], variables: list[Any], sums: list[Any]) -> None:
        totals = [
            gradient if gradient is None or total is None else self._scaled(total.value + 0)
            for gradient, total in zip(gradients, sums, strict=True)
        ]
        self._optimizer._hvd_apply_reduced(self._reduce(totals, variables), variables)
        for total in sums:
            if total is not None:
                total.assign(self._ops.zeros_like(total.value))
        self._counter.assign(0)

    def _skip(self) -> None:
        self._optimizer._iterations.assign_add(1)

    def _sums_of(self, variables: list[Any]) -> list[Any]:
        return [self._sums[self._optimizer._get_variable_index(v)] for v in variables]

    def _scaled(self, total: Any) -> Any:
        averages = self._distribution.options.average_aggregated_gradients
        return total / self._passes if averages else total

    def _reduce(self, totals: list[Any], variables: list[Any]) -> list[Any]:
        reduced: list[Any] = self._optimizer._hvd_reduce(totals, variables)
        return reduced

    def _dense(self, gradient: Any) -> Any:
        """The gradient as a dense tensor.

        Raises:
            ValueError: it is sparse and ``sparse_as_dense`` is not set.
        """
        if not hasattr(gradient, "dense_shape"):
            return gradient
        if not self._distribution.options.sparse_as_dense:
            raise ValueError(
                "backward_passes_per_step > 1 cannot add up sparse gradients; give "
                "DistributedOptimizer sparse_as_dense=True"
            )
        return self._ops.convert_to_tensor(gradient)


class JaxAggregation(Aggregation):
    """The same for JAX, where a compiled program cannot assign variables inside a branch.

    There the step is always computed; in passes that are none, everything is put back.
    """

    def apply(self, gradients: list[Any], variables: list[Any]) -> None:
        """See ``Aggregation``."""
        if not any(self._distribution.backend.is_traced(gradient) for gradient in gradients):
            super().apply(gradients, variables)
            return
        sums = self._sums_of(variables)
        totals = [
            gradient if gradient is None or total is None else total.value + gradient
            for gradient, total in zip(gradients, sums, strict=True)
        ]
        passes = self._counter.value + 1
        is_step = self._ops.equal(passes, self._passes)
        self._apply_or_put_back(is_step, totals, variables)
        for total, variable in zip(totals, sums, strict=True):
            if total is not None and variable is not None:
                rest = self._ops.where(is_step, self._ops.zeros_like(total), total)
                variable.assign(rest)
        self._counter.assign(self._ops.where(is_step, 0, passes))

    def _branch(self, is_step: Any, step: Callable[[], None], skip: Callable[[], None]) -> None:
        # Not compiled, and so not to be compiled for each branch either.
        step() if is_step else skip()

    def _apply_or_put_back(self, is_step: Any, totals: list[Any], variables: list[Any]) -> None:
        optimizer = self._optimizer
        given = [p for p, total in enumerate(totals) if total is not None]
        reduced = list(totals)
        results = self._ops.cond(
            is_step,
            lambda: self._reduce_given(totals, given, variables),
            lambda: [totals[p] for p in given],
        )
        for position, result in zip(given, results, strict=True):
            reduced[position] = result
        kept = [v for v in (*variables, *optimizer.variables) if v is not optimizer._iterations]
        before = [variable.value for variable in kept]
        optimizer._hvd_apply_reduced(reduced, variables)
        for variable, old in zip(kept, before, strict=True):
            variable.assign(self._ops.where(is_step, variable.value, old))

    def _reduce_given(self, totals: list[Any], given: list[int], variables: list[Any]) -> list[Any]:
        scaled = [self._scaled(totals[p]) for p in given]
        return self._reduce(scaled, [variables[p] for p in given])
