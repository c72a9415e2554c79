"""Findings about the clocks of hosts, as their log lines show them."""

from __future__ import annotations

from horovod.launch.doctor.findings import Finding, Severity
from horovod.launch.doctor.words import age_text
from horovod.trace.analysis.clocks import align_clocks
from horovod.trace.worlds import RecordedWorld

__all__ = ["find_clock_differences"]

_LEAST_NS = 1e9


def find_clock_differences(world: RecordedWorld) -> list[Finding]:
    """Hosts whose time of day is not that of the first one."""
    clocks = align_clocks(world.recordings, world.hosts)
    first = next((rank for rank in world.hosts[0] if rank in clocks), None)
    if first is None:
        return []
    lines = []
    for host in world.hosts[1:]:
        rank = next((rank for rank in host if rank in clocks), None)
        if rank is None:
            continue
        day_ns = _day_ns(world, rank) - _day_ns(world, first) + clocks[rank].ahead_ns
        if abs(day_ns) > _LEAST_NS + clocks[rank].error_ns:
            way = "ahead" if day_ns > 0 else "behind"
            lines.append(f"{world.name_of(rank)}: {age_text(abs(day_ns))} {way}")
    if not lines:
        return []
    return [
        Finding(
            Severity.NOTE,
            "clocks",
            f"Machines have another time of day than that of {world.name_of(first)}:",
            "Times in their logs cannot be compared before NTP sets their clocks.",
            lines=tuple(lines),
        )
    ]


def _day_ns(world: RecordedWorld, rank: int) -> int:
    """What the host's monotonic clock lacks to the time of day."""
    recording = world.recordings[rank]
    return recording.written_epoch_ns - recording.written_ns
