"""The finding about memory that goes back to the system and comes back in every step."""

from __future__ import annotations

from collections.abc import Iterator

from horovod.launch.doctor.findings import Finding, Severity, capital, duration_text
from horovod.trace.recording import Usage
from horovod.trace.worlds import RecordedWorld

_SETTING = "HOROVOD_KEEP_MEMORY"

# Smaller values are no finding.
_KERNEL_SHARE = 0.1
_FAULT_SHARE = 0.05
_FAULT_NS = 500  # the least that a page costs: to clear it, and to enter the kernel


def find_memory_advice(world: RecordedWorld, step_ns: float) -> Iterator[Finding]:
    """Ranks for which the kernel hands out and clears the same memory in every step.

    ``step_ns``: the usual step time.
    """
    usages = {rank: recording.usage for rank, recording in world.recordings.items()}
    costly = {rank: usage for rank, usage in usages.items() if usage and _is_costly(usage)}
    if not costly or _SETTING in (world.facts.get("settings") or {}):
        return
    rank = max(costly, key=lambda rank: costly[rank].page_faults)
    usage = costly[rank]
    pages = round(usage.page_faults * step_ns / usage.elapsed_ns)
    share = usage.kernel_ns / usage.cpu_ns
    yield Finding(
        Severity.ADVICE,
        "page-faults",
        f"{capital(world.name_of(rank))} gets {pages:,} pages of memory from the system in a step "
        f"of {duration_text(step_ns)}, and spends {share:.0%} of its CPU time in the kernel: "
        "memory that the program frees is given back, and cleared before it is handed out again.",
        f"--keep-memory ({_SETTING}=1) keeps it, if the machine has enough.",
        tuple(sorted(costly)),
        evidence={"pages": pages, "kernel_share": share, "step_seconds": step_ns / 1e9},
    )


def _is_costly(usage: Usage) -> bool:
    return (
        usage.kernel_ns > _KERNEL_SHARE * usage.cpu_ns
        and usage.page_faults * _FAULT_NS > _FAULT_SHARE * usage.cpu_ns
    )
