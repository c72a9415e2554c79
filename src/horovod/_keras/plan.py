"""Which gradients are reduced together, and under which names; pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from horovod._keras.library import variable_key
from horovod._keras.options import Groups

__all__ = ["Plan", "make_plan"]


class Plan(NamedTuple):
    """Positions in a list of gradients; every one once."""

    singles: list[tuple[str, int]]  # each under its full operation name
    groups: list[tuple[str, list[int]]]  # under names to be completed


def make_plan(
    name: str, indices: Sequence[int], variables: Sequence[Any], groups: Groups | None
) -> Plan:
    """Names and groups for the gradients of ``variables``.

    Args:
        name: what all names begin with; the same on every rank.
        indices: a number for each variable that stays the same from step to step.
        variables: the variables, in the order of their gradients.
        groups: a number of groups of nearly equal length, or lists of variables; the variables in
            none of these are reduced one by one.
    """
    chosen = _positions(variables, groups)
    in_group = {position for group in chosen for position in group}
    singles = [
        (f"allreduce.{name}.gradient_{index}", position)
        for position, index in enumerate(indices)
        if position not in in_group
    ]
    return Plan(singles, [(f"{name}.group_{indices[group[0]]}", group) for group in chosen])


def _positions(variables: Sequence[Any], groups: Groups | None) -> list[list[int]]:
    if groups is None:
        return []
    if isinstance(groups, int):
        count = min(groups, len(variables))
        bounds = [len(variables) * number // count for number in range(count + 1)] if count else []
        return [list(range(start, end)) for start, end in pairwise(bounds)]
    position_of = {variable_key(variable): p for p, variable in enumerate(variables)}
    keys = [[variable_key(variable) for variable in group] for group in groups]
    found = [[position_of[key] for key in group if key in position_of] for group in keys]
    return [group for group in found if group]
