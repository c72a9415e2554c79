"""The ``groups`` argument over variables; see ``horovod.core.gradient_groups``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from horovod.core import gradient_groups
from horovod.core.gradient_groups import Groups
from horovod.tensorflow.variables import key_of

__all__ = ["Groups", "check_groups", "split_into_groups"]


def check_groups(groups: Any, num_groups: int = 0) -> Groups:
    """``groups`` as a number > 0 or lists of variables; None if nothing is grouped.

    Raises:
        ValueError: it is neither, or a variable is in two groups.
    """
    return gradient_groups.check_groups(groups, num_groups, key_of)


def split_into_groups(
    groups: Groups, positions: Sequence[int], variables: Sequence[Any]
) -> tuple[list[list[int]], list[int]]:
    """Positions in groups, none of which is empty, and those that are in no group.

    Args:
        groups: what ``check_groups`` returned.
        positions: of gradients to reduce.
        variables: to which all the gradients belong.
    """
    keys = {key_of(variables[position]): position for position in positions}
    return gradient_groups.split_into_groups(groups, keys, key_of)
