"""Which core the engine's own threads stay on. Called by ``world.init``, around the engine's birth.

A thread inherits the cores of the one that starts it. So the thread in ``init`` goes to the core,
starts the engine and returns to the cores it had; a core that cannot be used is noticed before
anything has begun.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from horovod.errors import SettingError

_ENV = "HOROVOD_THREAD_AFFINITY"


def core_of(cores: Sequence[int], local_rank: int) -> int | None:
    """The core of ``HOROVOD_THREAD_AFFINITY``'s ``cores`` that this rank's threads belong to.

    Raises:
        SettingError: there are several, but none for this local rank.
    """
    if len(cores) <= 1:
        return cores[0] if cores else None
    if local_rank >= len(cores):
        raise SettingError(
            f"{_ENV}={','.join(map(str, cores))!r}: local rank {local_rank} has no core in this "
            f"list of {len(cores)}; expected one core for each local rank, or one for all"
        )
    return cores[local_rank]


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Within ``with`` this thread, and what it starts, runs on ``core`` only; None: as before.

    Raises:
        SettingError: this process cannot use the core.
    """
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError as error:
        raise SettingError(
            f"{_ENV}: core {core} cannot be used here ({error.strerror}); this process runs on "
            f"{_ranges(before)}"
        ) from None
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _ranges(cores: set[int]) -> str:
    """Cores in the form that taskset and /proc use: ``0-3,8``."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and parts[-1][-1] == core - 1:
            parts[-1][1:] = [core]
        else:
            parts.append([core])
    return ",".join("-".join(map(str, part)) for part in parts)
