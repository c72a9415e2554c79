"""Gradient reduction: what is the same on every backend.

``GradientReducer`` decides which gradients are reduced, under which names and in which groups; a
backend's *exchange* reduces them. The TensorFlow backend has a reducer of its own, shared with
``horovod.tensorflow``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, NamedTuple, NoReturn

from horovod._keras.library import variable_key
from horovod.core.compression import NoneCompressor, check_compressor
from horovod.core.gradient_groups import Groups, check_groups, leaf_of, split_into_groups
from horovod.core.operations import Adasum, Average, Sum, check_passes, check_predivide
from horovod.core.process_sets import ProcessSet, check_process_set, global_process_set
from horovod.core.world import has_others


@dataclass(frozen=True)
class Options:
    """How gradients are reduced; equal on all ranks. Meanings as in ``DistributedOptimizer``.

    Raises:
        ValueError: an argument is unusable.
    """

    name: str | None = None
    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = NoneCompressor
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = Average
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    groups: Groups = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    sharded: Any = False
    num_groups: InitVar[int] = 0

    def __post_init__(self, num_groups: int) -> None:
        if self.op == Adasum:
            raise ValueError("op=Adasum is not supported for Keras optimizers; use Average or Sum")
        if self.op not in (Average, Sum):
            raise ValueError(f"op must be Average or Sum, found {self.op!r}")
        check_predivide(self.op, self.gradient_predivide_factor)
        check_passes(self.backward_passes_per_step)
        if not hasattr(self.compression, "make_exchange"):
            check_compressor(self.compression)
        check_process_set(self.process_set)
        groups = check_groups(self.groups, num_groups, variable_key)
        object.__setattr__(self, "groups", groups)


class Plan(NamedTuple):
    """Positions in a list of gradients; each position once."""

    singles: list[tuple[str, int]]  # with the full operation name
    groups: list[tuple[str, list[int]]]  # with the beginning of the operation names
    names: list[str]  # the full operation name of each position, were it alone


# Reduces all of these dense gradients and returns them in the same order.
Exchange = Callable[[list[Any], Plan], list[Any]]


# Gradients, their variables, a number for each and whether each stays local, to reduced gradients.
Reducer = Callable[[Sequence[Any], Sequence[Any], Sequence[int], Sequence[bool]], list[Any]]


class GradientReducer:
    """A ``Reducer`` over an exchange of dense gradients.

    Args:
        name: the beginning of operation names; the same on every rank.
        options: how to reduce.
        exchange: the backend's.
    """

    def __init__(self, name: str, options: Options, exchange: Exchange) -> None:
        self._name = name
        self._options = options
        self._exchange = exchange

    def __call__(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        indices: Sequence[int],
        is_local: Sequence[bool],
    ) -> list[Any]:
        """Reduce the gradients that are neither None nor local; the others stay in their places.

        Args:
            gradients: one per variable, or None.
            variables: the variables of the gradients.
            indices: a number for each variable, the same in all steps and on every rank.
            is_local: whether the gradient stays on this rank.
        """
        result = list(gradients)
        if not has_others(self._options.process_set):
            return result
        given = [p for p, gradient in enumerate(result) if gradient is not None]
        global_ones = [p for p in given if not is_local[p]]
        if global_ones:
            numbers = [indices[p] for p in global_ones]
            chosen = [variables[p] for p in global_ones]
            plan = make_plan(self._name, numbers, chosen, self._options.groups)
            reduced = self._exchange([result[p] for p in global_ones], plan)
            for position, gradient in zip(global_ones, reduced, strict=True):
                result[position] = gradient
        if self._options.scale_local_gradients:
            size = self._options.process_set.size()
            for position in given:
                if is_local[position]:
                    result[position] = result[position] / size
        return result


def make_plan(name: str, indices: Sequence[int], variables: Sequence[Any], groups: Groups) -> Plan:
    """Names and groups for the gradients of ``variables``.

    Args:
        name: the beginning of all names; the same on every rank.
        indices: a number for each variable, the same in all steps and on every rank.
        variables: the variables, in the order of their gradients.
        groups: a number of groups of nearly equal length, or lists of variables; variables in no
            list are reduced one by one.
    """
    keys = dict(enumerate(map(variable_key, variables)))
    chosen, rest = split_into_groups(groups, keys, variable_key)
    labels = _labels_of(indices)
    pairs = zip(labels, variables, strict=True)
    names = [f"allreduce.{name}.gradient_{label}.{leaf_of(variable)}" for label, variable in pairs]
    singles = [(names[position], position) for position in rest]
    return Plan(singles, [(f"{name}.group_{labels[group[0]]}", group) for group in chosen], names)


def _labels_of(indices: Sequence[int]) -> list[str]:
    """The indices as text, which differ also where a variable has several gradients."""
    seen: Counter[int] = Counter()
    labels = []
    for index in indices:
        labels.append(f"{index}_{seen[index]}" if seen[index] else str(index))
        seen[index] += 1
    return labels


def compute_gradients(loss: Any, variables: list[Any], grad_loss: Any, tape: Any) -> NoReturn:
    """Backends other than TensorFlow have no tapes.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "compute_gradients() needs Keras on TensorFlow; compute gradients as the backend does and "
        "give them to apply_gradients()"
    )


def global_variables() -> NoReturn:
    """Backends other than TensorFlow have no global variables.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        "broadcast_global_variables() needs a TF1 graph; use BroadcastGlobalVariablesCallback"
    )
