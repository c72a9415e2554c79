"""Which cores this process may use, and which one the engine's threads stay on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from horovod.errors import SettingError

_CGROUPS = Path("/sys/fs/cgroup")
_ENV = "HOROVOD_THREAD_AFFINITY"


def usable_cores() -> int:
    """Cores that this process may run on: its affinity, within its cgroup's CPU quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # refused by a sandbox, or not Linux
        cores = os.cpu_count() or 1
    try:
        quota, period = _cpu_quota(_CGROUPS)
    except (OSError, ValueError):  # no quota, or another cgroup layout
        return cores
    return max(1, min(cores, quota // period)) if quota > 0 else cores


def _cpu_quota(cgroups: Path) -> tuple[int, int]:
    """The quota and its period, of cgroups of version 2 or 1; in version 1 -1 is no quota.

    Raises:
        OSError, ValueError: there is none.
    """
    if (both := cgroups / "cpu.max").exists():
        quota, period = both.read_text().split()
    else:
        quota, period = ((cgroups / f"cpu/cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
    return int(quota), int(period)


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
    """Within ``with`` this thread, and threads that it starts, run on ``core``; None: no change.

    The thread that calls ``init`` starts the engine inside. So the engine's threads stay on the
    core, and this thread returns to its former cores. An unusable core is an error before the
    engine starts.

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
