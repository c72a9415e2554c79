"""Findings about the end of a world: deaths, errors, mismatches."""

from __future__ import annotations

from collections.abc import Sequence

from horovod.launch.doctor.findings import (
    Finding,
    Severity,
    age_text,
    capital,
    named_ranks,
    shaped_title,
    title,
)
from horovod.trace.analysis.trouble import (
    Mismatch,
    find_deaths,
    find_mismatches,
    first_error,
    last_operations,
)
from horovod.trace.outcome import Outcome
from horovod.trace.worlds import RecordedWorld


def find_endings(world: RecordedWorld, *, is_after_hang: bool = False) -> list[Finding]:
    """Why the world failed, if it did; only the first cause if others follow from it.

    ``is_after_hang``: the user has ended a job that hung, so a death is not the cause.
    """
    findings = [_mismatch(world, labels) for labels in find_mismatches(world.recordings)]
    deaths = find_deaths(world.recordings)
    if deaths:
        severity = Severity.NOTE if is_after_hang else Severity.PROBLEM
        findings.append(_death(world, deaths[0].rank, severity))
    elif not is_after_hang and (failed := first_error(world.recordings)) is not None:
        findings.append(
            Finding(
                Severity.PROBLEM,
                "error",
                f"{capital(world.name_of(failed.rank))} ended with: {failed.detail}",
                "The text names what to look at; docs/troubleshooting.md has more by error text.",
                (failed.rank,),
                evidence={"error": failed.detail},
            )
        )
    return findings


def find_exit(outcome: Outcome, *, has_cause: bool) -> Finding:
    """The launcher saw the job fail; ``has_cause``: recordings say why."""
    advice = "The recordings show no cause: look at the last output of the rank that failed first."
    return Finding(
        Severity.NOTE if has_cause else Severity.PROBLEM,
        "exit",
        f"horovodrun ended with status {outcome.status}.",
        "" if has_cause else advice,
        lines=tuple(outcome.text.splitlines()),
        evidence={"status": outcome.status},
    )


def why_it_ended(world: RecordedWorld) -> str:
    """A short reason for an earlier world; empty if it ended without an error."""
    deaths = find_deaths(world.recordings)
    if deaths:
        return f"{world.name_of(deaths[0].rank)} died"
    failed = first_error(world.recordings)
    return failed.detail if failed is not None else ""


def _mismatch(world: RecordedWorld, mismatch: Mismatch) -> Finding:
    by_title: dict[str, list[int]] = {}
    for rank, label in mismatch.labels.items():
        by_title.setdefault(shaped_title(label), []).append(rank)
    parts = [f"{named_ranks(ranks, world.names)}: {shaped}" for shaped, ranks in by_title.items()]
    return Finding(
        Severity.PROBLEM,
        "mismatch",
        f"Ranks disagree about '{mismatch.name}': {'; '.join(parts)}.",
        "Give the tensor the same shape, dtype and operation on all ranks; "
        "HOROVOD_DEBUG_COLLECTIVES=1 says which line of the program submitted it.",
        tuple(mismatch.labels),
        evidence={"operation": mismatch.name},
    )


def _death(world: RecordedWorld, rank: int, severity: Severity) -> Finding:
    is_cause = severity is Severity.PROBLEM
    text = f"{capital(world.name_of(rank))} " + (
        "died: killed, or crashed below Python." if is_cause else "was ended after that."
    )
    lines = tuple(_last_lines(world, rank)) if rank in world.recordings else ()
    return Finding(severity, "death", text, AFTER_DEATH if is_cause else "", (rank,), lines)


AFTER_DEATH = (
    "Look at its last lines of output, and on its machine whether memory ran out "
    "(dmesg | grep -i oom)."
)


def _last_lines(world: RecordedWorld, rank: int) -> Sequence[str]:
    recording = world.recordings[rank]
    lines = []
    for operation in last_operations(recording, 3):
        label = recording.labels.get(operation.label)
        if label is None or operation.submitted_ns is None:
            continue
        state = "waiting for others" if operation.started_ns is None else "running"
        state = state if operation.done_ns is None else "done"
        before = age_text(recording.written_ns - operation.submitted_ns)
        lines.append(f"{title(label)}: submitted {before} before, {state}")
    return [f"the last that rank {rank} submitted:", *(f"  {line}" for line in lines)]
