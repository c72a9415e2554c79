"""Names of an optimizer's parameters: ranks match gradients by them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


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
