"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process may run on: its affinity, within its cgroup's CPU quota."""
    try:
        cores = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # refused by a sandbox, or not Linux
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no quota, or another cgroup layout
        return cores
