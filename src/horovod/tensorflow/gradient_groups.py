"""The ``groups`` argument of optimizers and tapes: which gradients are reduced together."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from horovod.compatibility import split_list
from horovod.tensorflow.variables import is_variable, key_of

__all__ = ["Groups", "check_groups", "split_into_groups"]

Groups = int | Sequence[Sequence[Any]] | None


def check_groups(groups: Any, num_groups: int = 0) -> Groups:
    """``groups`` as a number > 0 or lists of variables; None if nothing is grouped.

    Raises:
        ValueError: it is neither, or a variable is in two groups.
    """
    if num_groups != 0:
        warnings.warn("num_groups is deprecated; give the number as groups", DeprecationWarning, 3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, list | tuple):
        _check_lists(groups)
        return groups
    if isinstance(groups, int) and not isinstance(groups, bool) and groups > 0:
        return groups
    raise ValueError(f"groups must be a number > 0 or a list of lists of variables, found {groups}")


def split_into_groups(
    groups: Groups, positions: Sequence[int], variables: Sequence[Any]
) -> tuple[list[list[int]], list[int]]:
    """Positions in groups, none of which is empty, and those that are in no group.

    Args:
        groups: what ``check_groups`` returned.
        positions: of gradients to reduce.
        variables: to which all the gradients belong.
    """
    if groups is None:
        return [], list(positions)
    if isinstance(groups, int):
        pieces = split_list(positions, groups)
        return [list(piece) for piece in pieces if piece], []
    position_of = {key_of(variables[position]): position for position in positions}
    chosen = [
        [position_of.pop(key_of(member)) for member in group if key_of(member) in position_of]
        for group in groups
    ]
    return [group for group in chosen if group], sorted(position_of.values())


def _check_lists(groups: Sequence[Any]) -> None:
    seen: dict[int, int] = {}
    for number, group in enumerate(groups):
        if not isinstance(group, list | tuple) or not all(map(is_variable, group)):
            raise ValueError(
                f"groups must be lists of variables, found {group!r} as group {number}"
            )
        for variable in group:
            first = seen.setdefault(key_of(variable), number)
            if first != number or sum(other is variable for other in group) > 1:
                raise ValueError(
                    f"a variable can be in one group only; {variable.name!r} is in groups {first} "
                    f"and {number}"
                )
