"""Whether all ranks were given the same arguments, told before training starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from horovod.core.process_sets import ProcessSet
from horovod.numpy.objects import allgather_object


def check_equal_settings(
    title: str, name: str, settings: Mapping[str, Any], process_set: ProcessSet
) -> None:
    """Compare the settings of all ranks of a set; blocks until all are here.

    Args:
        title: what the user calls what is set up.
        name: of the operations.
        settings: by the names that the user knows.
        process_set: the ranks, this one among them.

    Raises:
        ValueError: a rank has other settings than the first one; on all ranks alike.
    """
    members = process_set.ranks or []
    answers = allgather_object(dict(settings), f"{name}.settings", process_set)
    for rank, found in zip(members, answers, strict=True):
        for key, expected in answers[0].items():
            if found[key] != expected:
                raise ValueError(
                    f"{title}: rank {rank} has {key}={found[key]!r}, rank {members[0]} has "
                    f"{key}={expected!r}; all ranks must have the same"
                )
