"""Findings about the end of a world: deaths, errors, mismatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from horovod.launch.doctor.findings import (
    Finding,
    Severity,
    capital,
    duration_text,
    named_ranks,
    note,
    problem,
    shaped_title,
    title,
)
from horovod.trace.analysis.trouble import (
    Mismatch,
    find_deaths,
    find_mismatches,
    first_error,
    last_operations,
    lost_its_peer,
)
from horovod.trace.failures import RankFailure
from horovod.trace.outcome import Outcome
from horovod.trace.recording import Recording
from horovod.trace.worlds import RecordedWorld

_MOST_LINES = 12
_MOST_EXCEPTIONS = 3
_OWN = "horovod."  # exceptions of Horovod are consequences, or have findings of their own


def find_endings(
    world: RecordedWorld, outcome: Outcome | None = None, *, is_after_hang: bool = False
) -> list[Finding]:
    """Why the world failed, if it did; only the first cause if others follow from it.

    ``is_after_hang``: the user has ended a job that hung, so a death is not the cause.
    """
    findings = [_mismatch(world, labels) for labels in find_mismatches(world.recordings)]
    raised = find_exceptions(world, outcome)
    failures = failures_of(world, outcome)
    deaths = find_deaths(world.recordings)
    if raised:
        findings += raised
    elif deaths:
        severity = Severity.NOTE if is_after_hang else Severity.PROBLEM
        findings.append(_death(world, deaths[0], severity, failures))
    elif not is_after_hang and (failed := first_error(world.recordings)) is not None:
        findings.append(_error(world, failed))
    if any(finding.severity is Severity.PROBLEM for finding in findings):
        findings += _lost(world, {rank for finding in findings for rank in finding.ranks})
    return findings


def failures_of(world: RecordedWorld, outcome: Outcome | None) -> Sequence[RankFailure]:
    """The ranks that failed, the cause first, from the launcher or else from recordings."""
    return (outcome.failures if outcome is not None else ()) or world.failures


def find_exceptions(world: RecordedWorld, outcome: Outcome | None) -> list[Finding]:
    """The exceptions of the program that have ended ranks, the cause first."""
    alike: dict[str, list[RankFailure]] = {}
    for failure in failures_of(world, outcome):
        if failure.kind and not failure.kind.startswith(_OWN):
            message = f": {failure.message}" if failure.message else ""
            where = f" ({failure.place})" if failure.place else ""
            alike.setdefault(f"raised {failure.kind}{message}{where}.", []).append(failure)
    return [_exception(world, text, same) for text, same in [*alike.items()][:_MOST_EXCEPTIONS]]


def _exception(world: RecordedWorld, text: str, same: Sequence[RankFailure]) -> Finding:
    first, ranks = same[0], sorted(failure.rank for failure in same)
    has_others = len(ranks) < len(world.names)
    return problem(
        "exception",
        f"{capital(named_ranks(ranks, world.names))} {text}",
        "Look at that line"
        + (": the other ranks have ended because of it." if has_others else "."),
        tuple(ranks),
        _printed(first),
        {"exception": first.kind, "message": first.message, "file": first.path, "line": first.line},
    )


def _error(world: RecordedWorld, failed: Recording) -> Finding:
    if lost_its_peer(failed):
        what = "lost its peer"
        advice = (
            "Look at the last output of the rank that it names: that rank ended first, or its loop "
            "is shorter."
        )
    else:
        what = "ended with"
        advice = "The text names what to look at; docs/troubleshooting.md has more by error text."
    return problem(
        "error",
        f"{capital(world.name_of(failed.rank))} {what}: {failed.detail}",
        advice,
        (failed.rank,),
        evidence={"error": failed.detail},
    )


def _lost(world: RecordedWorld, causes: set[int]) -> Iterator[Finding]:
    """The ranks that ended only because another one had ended, in a line."""
    others = sorted(world.recordings.keys() - causes)
    lost = [rank for rank in others if lost_its_peer(world.recordings[rank])]
    if lost:
        verb = "lost its peer." if len(lost) == 1 else "lost their peer."
        text = f"{capital(named_ranks(lost, world.names))} {verb}"
        yield note("lost-peer", text, ranks=tuple(lost))


def find_exit(outcome: Outcome, *, has_cause: bool) -> Finding:
    """The launcher saw the job fail; ``has_cause``: another finding says why."""
    advice = "The recordings show no cause: look at the last output of the rank that failed first."
    first = outcome.failures[0] if outcome.failures and not has_cause else None
    last = () if first is None else _printed(first)
    return Finding(
        Severity.NOTE if has_cause else Severity.PROBLEM,
        "exit",
        f"horovodrun ended with status {outcome.status}.",
        "" if has_cause else advice,
        lines=(*outcome.text.splitlines(), *last),
        evidence={"status": outcome.status},
    )


def _printed(failure: RankFailure) -> tuple[str, ...]:
    """The last output of a rank."""
    lines = tuple(f"  {line}" for line in failure.lines[-_MOST_LINES:])
    return (f"rank {failure.rank} has printed last:", *lines) if lines else ()


def why_it_ended(world: RecordedWorld) -> str:
    """A short reason for an earlier world; empty if it ended without an error."""
    if deaths := find_deaths(world.recordings):
        return f"{world.name_of(deaths[0])} died"
    failed = first_error(world.recordings)
    return failed.detail if failed is not None else ""


def _mismatch(world: RecordedWorld, mismatch: Mismatch) -> Finding:
    by_title: dict[str, list[int]] = {}
    for rank, label in mismatch.labels.items():
        by_title.setdefault(shaped_title(label), []).append(rank)
    parts = [f"{named_ranks(ranks, world.names)}: {shaped}" for shaped, ranks in by_title.items()]
    return problem(
        "mismatch",
        f"Ranks disagree about '{mismatch.name}': {'; '.join(parts)}.",
        "Give the tensor the same shape, dtype and operation on all ranks; "
        "HOROVOD_DEBUG_COLLECTIVES=1 says which line of the program submitted it.",
        tuple(mismatch.labels),
        evidence={"operation": mismatch.name},
    )


def _death(
    world: RecordedWorld, rank: int, severity: Severity, failures: Sequence[RankFailure]
) -> Finding:
    is_cause = severity is Severity.PROBLEM
    what = "died: killed, or crashed below Python." if is_cause else "was ended after that."
    text = f"{capital(world.name_of(rank))} {what}"
    lines = _last_lines(world, rank) if rank in world.recordings else ()
    printed = [line for failure in failures if failure.rank == rank for line in _printed(failure)]
    advice = AFTER_DEATH if is_cause else ""
    return Finding(severity, "death", text, advice, (rank,), (*lines, *printed))


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
        before = duration_text(recording.written_ns - operation.submitted_ns)
        lines.append(f"{title(label)}: submitted {before} before, {state}")
    return [f"the last that rank {rank} submitted:", *(f"  {line}" for line in lines)]
