"""Distributed optimizers of Keras 3: gradients are reduced where they are applied.

``fit``, ``train_on_batch``, ``apply_gradients`` and ``stateless_apply`` all call ``apply``. So a
wrapped optimizer reduces all gradients that it gets, except those that its own
``_compute_gradients`` has returned. Use it without a ``DistributedGradientTape``: a second average
costs time, and a second sum multiplies gradients by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from horovod._keras.library import backend_name, innermost, step_counter, trained_variables
from horovod._keras.optimizer_class import CallableList, DistributedOptimizerMixin, Distribution

Pairs = list[tuple[Any, Any]]


class Keras3Optimizer(DistributedOptimizerMixin):
    """Comes before a class derived from ``keras.optimizers.Optimizer``."""

    _hvd_aggregation: Aggregation | None

    def _hvd_distribute(self) -> None:
        super()._hvd_distribute()
        self._hvd_aggregation = _aggregation_for(self, self._hvd)

    def build(self, variables: Sequence[Any]) -> None:
        """As the original; also builds the local aggregation."""
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

        ``apply_gradients`` applies these gradients unchanged and reduces all others. With
        ``backward_passes_per_step`` > 1 the result is this rank's gradients, and
        ``apply_gradients`` adds them up.

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
        """The variables of the gradients; empty if the original should refuse the call."""
        if given is not None:
            found = list(given)
            if not self.built:  # type: ignore[attr-defined]
                self.build(found)
        else:
            found = list(trained_variables(self))
        return found if len(found) == len(grads) else []

    def _hvd_reduce(self, grads: Sequence[Any], variables: list[Any]) -> list[Any]:
        self._hvd_check_clipping(variables)
        return self._hvd.reduce(grads, variables, map(self._hvd_index, variables))

    def _hvd_index(self, variable: Any) -> int:
        index_of: dict[Any, int] = innermost(self)._trainable_variables_indices
        return index_of.get(self._var_key(variable), -1)  # type: ignore[attr-defined]

    @property
    def variables(self) -> CallableList:
        """As the original; the list can also be called, as in Keras 2."""
        return CallableList(super().variables)  # type: ignore[misc]

    def save_own_variables(self, store: Any) -> None:
        """As the original, without the variables of local aggregation: files stay loadable."""
        for number, variable in enumerate(self._hvd_saved_variables()):
            store[str(number)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """As the original; local aggregation starts again."""
        saved = self._hvd_saved_variables()
        if len(store.keys()) != len(saved):
            super().load_own_variables(store)  # type: ignore[misc]
            return
        for number, variable in enumerate(saved):
            variable.assign(store[str(number)])
        if self._hvd_aggregation is not None:
            self._hvd_aggregation.reset()

    def _hvd_saved_variables(self) -> list[Any]:
        if self._hvd_aggregation is None:
            return list(self.variables)
        own = {id(variable) for variable in self._hvd_aggregation.variables}
        return [variable for variable in self.variables if id(variable) not in own]


class Keras3ScalingOptimizer(Keras3Optimizer):
    """Comes before ``LossScaleOptimizer``.

    It reduces first, so all ranks decide alike about infinite gradients. Its ``stateless_apply``
    does not call ``apply``.
    """

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Reduce the gradients over all ranks, then go on as the original does."""
        found = self._hvd_variables(grads, None)
        if found:
            grads = self._hvd_reduce(grads, found)
        return super().stateless_apply(  # type: ignore[misc]
            optimizer_variables, grads, trainable_variables
        )

    def _hvd_reduce(self, grads: Sequence[Any], variables: list[Any]) -> list[Any]:
        """As for other optimizers; infinite gradients of local variables make a shared one NaN.

        So all ranks drop the step. If one did so alone, variables and scales would differ.
        """
        found, ops = list(grads), self._hvd_keras.ops
        is_local = self._hvd.are_local(variables)
        given = [p for p, gradient in enumerate(found) if gradient is not None]
        local = [found[p] for p in given if is_local[p]]
        shared = [p for p in given if not is_local[p] and not hasattr(found[p], "dense_shape")]
        if local and shared:
            is_finite = self.check_finite(local)  # type: ignore[attr-defined]
            found[shared[0]] = ops.where(is_finite, found[shared[0]], float("nan"))
        return super()._hvd_reduce(found, variables)


def _aggregation_for(optimizer: Any, distribution: Distribution) -> Aggregation | None:
    """The local aggregation of an optimizer; None if every pass is a step."""
    if distribution.options.backward_passes_per_step == 1:
        return None
    if backend_name(distribution.keras) == "jax":
        return JaxAggregation(optimizer, distribution)
    return Aggregation(optimizer, distribution)


class Aggregation:
    """Sums the gradients of n passes in variables of the optimizer, then makes a step.

    ``variables`` come last among the optimizer's and are not saved. ``iterations`` counts passes,
    with Keras's own ``gradient_accumulation_steps`` steps. That works beside this; alone it would
    reduce in every pass, or clip gradients that are not reduced yet.
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
        """The sums and the number of passes."""
        sums = [variable for variable in self._sums if variable is not None]
        return [*sums, self._counter] if self._counter is not None else []

    def build(self, variables: Sequence[Any]) -> None:
        """Create the variables, once."""
        if self._counter is not None:
            return
        self._sums = [self._new_sum(variable) for variable in variables]
        self._counter = self._optimizer.add_variable(
            shape=(), dtype="int", initializer="zeros", name="aggregated_passes"
        )

    def reset(self) -> None:
        """Forget the passes since the last step."""
        for variable in self.variables:
            variable.assign(self._ops.zeros_like(variable.value))

    def _new_sum(self, variable: Any) -> Any:
        """A variable for the sum of gradients; None where a gradient is a variable's next value."""
        # Keras's add_optimizer_variables does the same, but not all versions of Keras 3 have it.
        if getattr(variable, "overwrite_with_gradient", False):
            return None
        return self._optimizer.add_variable_from_reference(variable, "aggregated_gradient")

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
        if not self._counts_steps:
            step_counter(self._optimizer).assign_add(1)

    @property
    def _counts_steps(self) -> bool:
        """Whether Keras adds up the gradients of some steps, and knows the last one by counting."""
        # The oldest versions of Keras 3 do not have the attribute.
        return bool(getattr(self._optimizer, "gradient_accumulation_steps", None))

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
            ValueError: the gradient is sparse, and ``sparse_as_dense`` is not set.
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
    """``Aggregation`` for JAX, where a compiled program cannot assign variables inside a branch.

    There each pass computes the step; a pass that is no step then restores the old values.
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
        self._apply_or_restore(is_step, totals, variables)
        for total, variable in zip(totals, sums, strict=True):
            if total is not None and variable is not None:
                rest = self._ops.where(is_step, self._ops.zeros_like(total), total)
                variable.assign(rest)
        self._counter.assign(self._ops.where(is_step, 0, passes))

    def _branch(self, is_step: Any, step: Callable[[], None], skip: Callable[[], None]) -> None:
        # Eager: ``cond`` would compile both branches.
        step() if is_step else skip()

    def _apply_or_restore(self, is_step: Any, totals: list[Any], variables: list[Any]) -> None:
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
        counter = None if self._counts_steps else step_counter(optimizer)
        kept = [v for v in (*variables, *optimizer.variables) if v is not counter]
        before = [variable.value for variable in kept]
        optimizer._hvd_apply_reduced(reduced, variables)
        for variable, old in zip(kept, before, strict=True):
            variable.assign(self._ops.where(is_step, variable.value, old))

    def _reduce_given(self, totals: list[Any], given: list[int], variables: list[Any]) -> list[Any]:
        scaled = [self._scaled(totals[p]) for p in given]
        return self._reduce(scaled, [variables[p] for p in given])
