"""From the gradients of one rank to those of all: what is the same on every backend.

``GradientReducer`` decides which gradients travel; a backend's *exchange* makes them travel. The
TensorFlow backend has a reducer of its own, shared with ``horovod.tensorflow``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from horovod._keras.options import Options
from horovod._keras.plan import Plan, make_plan
from horovod.core.process_sets import ProcessSet

__all__ = ["Exchange", "GradientReducer", "Reducer", "is_reducing"]

# Reduces dense gradients, all of them, and returns them in the same order.
Exchange = Callable[[list[Any], Plan], list[Any]]


class Reducer(Protocol):
    """Gradients of this rank in, gradients of all ranks out."""

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        indices: Sequence[int],
        is_local: Sequence[bool],
    ) -> list[Any]:
        """Reduce what is neither None nor local; in the same order, None stays None.

        Args:
            gradients: one per variable, or None.
            variables: the variables they belong to.
            indices: for each a number that stays the same from step to step and on every rank.
            is_local: whether the gradient stays on this rank.
        """


class GradientReducer:
    """``Reducer`` over an exchange of dense gradients.

    Args:
        name: what operation names begin with; the same on every rank.
        options: how to reduce.
        exchange: the backend's.
    """

    def __init__(self, name: str, options: Options, exchange: Exchange) -> None:
        self._name = name
        self._options = options
        self._exchange = exchange

    def reduce(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        indices: Sequence[int],
        is_local: Sequence[bool],
    ) -> list[Any]:
        """See ``Reducer``."""
        result = list(gradients)
        if not is_reducing(self._options.process_set):
            return result
        given = [p for p, gradient in enumerate(result) if gradient is not None]
        travelling = [p for p in given if not is_local[p]]
        if travelling:
            self._reduce_at(travelling, result, variables, indices)
        if self._options.scale_local_gradients:
            size = self._options.process_set.size()
            for position in given:
                if is_local[position]:
                    result[position] = result[position] / size
        return result

    def _reduce_at(
        self,
        positions: list[int],
        result: list[Any],
        variables: Sequence[Any],
        indices: Sequence[int],
    ) -> None:
        plan = make_plan(
            self._name,
            [indices[p] for p in positions],
            [variables[p] for p in positions],
            self._options.groups,
        )
        reduced = self._exchange([result[p] for p in positions], plan)
        for position, gradient in zip(positions, reduced, strict=True):
            result[position] = gradient


def is_reducing(process_set: ProcessSet) -> bool:
    """Whether this rank has others to reduce with.

    Raises:
        ValueError: ``init`` was not called, or the set is not registered.
    """
    included = process_set.included()
    if included is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    members = process_set.size()
    if members is None:
        raise ValueError(f"DistributedOptimizer: {process_set} is not registered; add it first")
    return bool(included) and members > 1
