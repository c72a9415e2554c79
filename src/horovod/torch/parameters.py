"""An optimizer's parameters: their names, by which ranks match gradients, and their groups.

Gradients of a group are reduced together: the ``groups`` argument of ``DistributedOptimizer``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from horovod.core.process_sets import ProcessSet
from horovod.elastic import is_elastic_job
from horovod.numpy.objects import broadcast_object

Groups = int | Sequence[Sequence[Tensor]]


def choose_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """The given names, or default ones if none are given.

    Raises:
        ValueError: entries are not pairs, a name is there twice, or a parameter has none.
    """
    if callable(named_parameters):
        raise ValueError("named_parameters is a function: call it, as in model.named_parameters()")
    pairs = list(named_parameters) if named_parameters is not None else []
    names: dict[Tensor, str] = {}
    if not pairs:
        add_default_names(optimizer, names)
        return names
    _check_pairs(pairs)
    names = {param: name for name, param in pairs}
    unnamed = [
        f"group {group} index {position} of shape {list(param.shape)}"
        for group, position, param in _places(optimizer)
        if param not in names
    ]
    if unnamed:
        raise ValueError(
            "named_parameters must name every parameter of the optimizer; it lacks: "
            + ", ".join(unnamed)
        )
    return names


def add_default_names(optimizer: torch.optim.Optimizer, names: dict[Tensor, str]) -> None:
    """Name the parameters that have no name by their place in the optimizer."""
    for group, position, param in _places(optimizer):
        names.setdefault(param, f"allreduce.noname.{group}.{position}")


def operation_names(params: Iterable[Tensor], names: dict[Tensor, str]) -> list[str]:
    """Full names of the parameters' allreduces."""
    return [f"allreduce.{names[param]}" for param in params]


def plain_name(operation_name: str) -> str:
    """The parameter's name in the full name of its allreduce."""
    return operation_name.removeprefix("allreduce.")


def _places(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, int, Tensor]]:
    for group, entry in enumerate(optimizer.param_groups):
        for position, param in enumerate(entry["params"]):
            yield group, position, param


def _check_pairs(pairs: list[Any]) -> None:
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(
                "named_parameters must give (name, parameter) tuples, as model.named_parameters() "
                f"does; found {type(pair).__name__}"
            )
    duplicates = sorted(name for name, count in Counter(n for n, _ in pairs).items() if count > 1)
    if duplicates:
        raise ValueError(
            "names in named_parameters must be unique; duplicates: " + ", ".join(duplicates)
        )


def check_groups(groups: Any, num_groups: int) -> Groups | None:
    """``groups`` as a number > 0 or lists of parameters; None if nothing is grouped.

    Raises:
        ValueError: it is neither, or names a tensor twice.
    """
    if num_groups:
        text = "num_groups is deprecated; give DistributedOptimizer the number as groups"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None or isinstance(groups, int):
        return _check_number(groups or 0)
    if not isinstance(groups, list | tuple):
        raise ValueError(
            f"groups must be a number or a list of lists of tensors, found {type(groups).__name__}"
        )
    _check_lists(groups)
    return groups or None


def choose_groups(
    groups: Groups | None, names: dict[Tensor, str], params: list[Tensor], process_set: ProcessSet
) -> list[list[Tensor]]:
    """The parameters of each group, in the same order on every rank of the set.

    Blocks until all ranks of the set call it if ``groups`` is a number, except in an elastic job:
    there ranks come at different times, and each one's own order counts.

    Args:
        groups: what ``check_groups`` returned.
        names: a name for each parameter.
        params: the optimizer's parameters. Listed tensors that are not among them or need no
            gradient are left out.
        process_set: the ranks that reduce, this one among them; its first rank's order counts.

    Raises:
        ValueError: this rank's trainable parameters are not those of the first rank.
    """
    trainable = [param for param in params if param.requires_grad]
    if isinstance(groups, int) and is_elastic_job():
        return split_evenly(trainable, groups)
    if isinstance(groups, int):
        return split_evenly(_in_first_ranks_order(trainable, names, process_set), groups)
    known = set(trainable)
    chosen = [[param for param in group if param in known] for group in groups or ()]
    return [group for group in chosen if group]


def split_evenly(params: list[Tensor], count: int) -> list[list[Tensor]]:
    """``params`` in ``count`` runs, fewer if there are fewer, whose lengths differ by at most 1."""
    count = min(count, len(params))
    bounds = [len(params) * number // count for number in range(count + 1)] if count else []
    return [params[start:end] for start, end in pairwise(bounds)]


def _check_number(number: int) -> int | None:
    if number < 0:
        raise ValueError(f"groups must be positive, found {number}")
    return number or None


def _check_lists(groups: Sequence[Any]) -> None:
    seen: dict[Tensor, int] = {}
    for number, group in enumerate(groups):
        if not isinstance(group, list | tuple):
            raise ValueError(
                f"groups must be lists of tensors, found {type(group).__name__} as group {number}"
            )
        for tensor in group:
            if not isinstance(tensor, Tensor):
                raise ValueError(
                    f"groups must hold tensors only, found {type(tensor).__name__} "
                    f"in group {number}"
                )
            if tensor in seen:
                raise ValueError(
                    f"a tensor can be in one group only; one of shape {list(tensor.shape)} is in "
                    f"groups {seen[tensor]} and {number}"
                )
            seen[tensor] = number


def _in_first_ranks_order(
    params: list[Tensor], names: dict[Tensor, str], process_set: ProcessSet
) -> list[Tensor]:
    by_name = {names[param]: param for param in params}
    mine = list(by_name)
    first = (process_set.ranks or [0])[0]
    order: list[str] = broadcast_object(
        mine, root_rank=first, name="optimizer.groups", process_set=process_set
    )
    if sorted(order) != sorted(mine):
        raise ValueError(
            f"groups: rank {first} has the trainable parameters {order}, this rank {mine}; "
            "all ranks must have the same"
        )
    return [by_name[name] for name in order]
