"""The arguments of ``init``, checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from horovod.core.base.mpi_library import is_communicator
from horovod.core.process_sets import ProcessSet


def static_sets_of(process_sets: Sequence[ProcessSet] | str | None) -> Sequence[ProcessSet]:
    """The sets to register; for "dynamic" none, and it sets the variable that allows later ones.

    Raises:
        ValueError: ``process_sets`` is something else.
    """
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f"init: process_sets={process_sets!r}: expected 'dynamic' or a list of ProcessSet"
            )
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        return []
    if isinstance(process_sets, ProcessSet):
        raise ValueError(f"init: process_sets: expected a list, found {process_sets}")
    static_sets = list(process_sets or [])
    for entry in static_sets:
        if not isinstance(entry, ProcessSet):
            raise ValueError(f"init: process_sets: expected ProcessSet objects, found {entry!r}")
    return static_sets


def check_comm(comm: Any, static_sets: Sequence[ProcessSet]) -> None:
    """Refuse a ``comm`` that is no list of ranks and no communicator.

    Raises:
        ValueError: it is something else.
        NotImplementedError: sets are communicators, and ``comm`` is none.
    """
    if is_communicator(comm):
        return
    if any(process_set.mpi_comm is not None for process_set in static_sets):
        raise NotImplementedError(
            "init: process sets of mpi4py communicators need a communicator as comm, too"
        )
    if comm is None:
        return
    if not isinstance(comm, (list, tuple, range)):
        raise ValueError(f"Invalid type of argument comm: expected a list of ranks, found {comm!r}")
    if any(map(is_communicator, comm)):
        raise ValueError(
            "init: comm takes one communicator; give the others as process_sets=[ProcessSet(comm)]"
        )
    if not all(isinstance(rank, int) for rank in comm):
        raise ValueError(f"Invalid type of argument comm: expected a list of ranks, found {comm!r}")
