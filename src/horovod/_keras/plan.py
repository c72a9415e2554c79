"""Which gradients are reduced together, and under which names; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from horovod._keras.library import variable_key
from horovod.core.gradient_groups import Groups, split_into_groups

__all__ = ["Plan", "make_plan"]


class Plan(NamedTuple):
    """Positions in a list of gradients; every one once."""

    singles: list[tuple[str, int]]  # each under its full operation name
    groups: list[tuple[str, list[int]]]  # under names to be completed


def make_plan(name: str, indices: Sequence[int], variables: Sequence[Any], groups: Groups) -> Plan:
    """Names and groups for the gradients of ``variables``.

    Args:
        name: what all names begin with; the same on every rank.
        indices: a number for each variable that stays the same from step to step.
        variables: the variables, in the order of their gradients.
        groups: a number of groups of nearly equal length, or lists of variables; the variables in
            none of these are reduced one by one.
    """
    keys = {variable_key(variable): position for position, variable in enumerate(variables)}
    chosen, rest = split_into_groups(groups, keys, variable_key)
    singles = [(f"allreduce.{name}.gradient_{indices[position]}", position) for position in rest]
    return Plan(singles, [(f"{name}.group_{indices[group[0]]}", group) for group in chosen])
