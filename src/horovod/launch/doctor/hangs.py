"""Findings about ranks that wait for each other forever."""

from __future__ import annotations

from collections.abc import Mapping

from horovod.launch.doctor.findings import (
    Finding,
    capital,
    duration_text,
    named_ranks,
    problem,
    stack_lines,
    title,
    where_text,
)
from horovod.trace.analysis.trouble import (
    Stall,
    Stuck,
    find_stalls,
    find_stuck,
    has_left,
    last_operations,
    pending_of,
)
from horovod.trace.presence import RankState
from horovod.trace.worlds import RecordedWorld

_LEAST_NS = 2e9  # shorter waits are no hang
_STEPS = 5.0  # nor are waits of fewer steps
_MOST = 3
_MOST_DESCRIBED = 3


def find_hangs(
    world: RecordedWorld, states: Mapping[int, RankState], step_ns: float
) -> list[Finding]:
    """Operations that wait for ranks, and collectives without progress.

    ``step_ns`` is the usual step time.
    """
    limit_ns = max(_LEAST_NS, _STEPS * step_ns)
    stopped = [rank for rank, state in states.items() if state is RankState.STOPPED]
    findings = [_stopped(world, stopped)] if stopped else []
    stalls = [s for s in find_stalls(world.recordings, world.size) if s.age_ns > limit_ns]
    groups: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], list[Stall]] = {}
    for stall in stalls:
        groups.setdefault((stall.ready, stall.missing, stall.unknown), []).append(stall)
    waiting = {rank for stall in stalls for rank in stall.ready}
    if len(groups) > 1 and all(waiting >= {*stall.missing, *stall.unknown} for stall in stalls):
        findings.append(_divergence(world, list(groups.values())))
    else:
        findings += [_stall(world, alike) for alike in list(groups.values())[:_MOST]]
    if not stalls:
        stuck = [s for s in find_stuck(world.recordings) if s.age_ns > limit_ns]
        findings += [_stuck(world, one) for one in stuck[:1]]
    return findings


def _stopped(world: RecordedWorld, ranks: list[int]) -> Finding:
    return problem(
        "stopped",
        f"{capital(named_ranks(ranks, world.names))} is stopped (SIGSTOP or a debugger).",
        "Let it go on with kill -CONT and its pid, or detach the debugger.",
        tuple(ranks),
    )


def _divergence(world: RecordedWorld, groups: list[list[Stall]]) -> Finding:
    """All ranks wait, but in different operations."""
    parts, lines, places = [], [], []
    for alike in groups[:_MOST_DESCRIBED]:
        stall = alike[0]
        rank = stall.ready[0]
        more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        ranks = named_ranks(stall.ready, world.names)
        parts.append(f"{ranks} in {title(stall.label)}{more}, for {duration_text(stall.age_ns)}")
        lines += _described(world, rank)
        if place := where_text(world.recordings[rank]):
            places.append(f"rank {rank} is in {place}")
    where = f" ({'; '.join(places)})" if places else ""
    return problem(
        "divergence",
        f"Ranks wait for each other in different operations: {'; '.join(parts)}.",
        "All ranks have to submit the same operations by the same names: look for a condition that "
        "differs between them, such as if rank() == 0, or loops with different numbers of steps"
        f"{where}.",
        tuple(sorted({rank for alike in groups for rank in alike[0].ready})),
        tuple(lines),
        {
            "operations": [
                {
                    "name": alike[0].label.name,
                    "ready": list(alike[0].ready),
                    "missing": [*alike[0].missing, *alike[0].unknown],
                    "seconds": alike[0].age_ns / 1e9,
                }
                for alike in groups
            ]
        },
    )


def _described(world: RecordedWorld, rank: int) -> list[str]:
    recording = world.recordings.get(rank)
    calls = () if recording is None else stack_lines(recording)
    head = [f"rank {rank} is at, the last call first:"] if calls else []
    return [*head, *(f"  {call}" for call in calls)]


def _stall(world: RecordedWorld, alike: list[Stall]) -> Finding:
    stall = alike[0]
    absent = (*stall.missing, *stall.unknown)
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    waits = "have waited" if more else "has waited"
    what = f"{title(stall.label)}{more} {waits} for {duration_text(stall.age_ns)}"
    if not absent:
        return problem(
            "not-started",
            f"{what}, although all ranks have submitted it.",
            "Look for a rank that is stopped or starved of CPU time.",
            stall.ready,
        )
    did, did_not = named_ranks(stall.ready, world.names), named_ranks(absent, world.names)
    text = f"{what}: {did} submitted it, {did_not} did not."
    doings = [_doing(world, rank) for rank in stall.missing[:_MOST_DESCRIBED]]
    lines = [line for rank in stall.missing[:_MOST_DESCRIBED] for line in _described(world, rank)]
    return problem(
        "stall",
        " ".join([text, *doings]),
        _advice(world, stall),
        absent,
        tuple(lines),
        {
            "operation": stall.label.name,
            "operations": [other.label.name for other in alike],
            "ready": list(stall.ready),
            "missing": list(absent),
            "seconds": stall.age_ns / 1e9,
        },
    )


def _doing(world: RecordedWorld, rank: int) -> str:
    """A sentence about the missing rank: what it does instead."""
    recording = world.recordings[rank]
    if has_left(recording):
        return f"Rank {rank} has shut down."
    if waiting := pending_of(recording):
        oldest = waiting[0]
        age = duration_text(oldest.age_ns)
        return f"Rank {rank} has itself waited for {age}, in {title(oldest.label)}."
    for operation in last_operations(recording, 1):
        label = recording.labels.get(operation.label)
        if label is not None and operation.submitted_ns is not None:
            age = duration_text(recording.written_ns - operation.submitted_ns)
            return f"Rank {rank} has last submitted {title(label)}, {age} ago, which is done."
    return f"Rank {rank} has submitted nothing."


def _advice(world: RecordedWorld, stall: Stall) -> str:
    if not stall.missing:
        return "There is no recording of it: see below for how to get one."
    if all(has_left(world.recordings[rank]) for rank in stall.missing):
        return "It ended its loop sooner: give all ranks the same number of steps, or use join()."
    instead = [p for rank in stall.missing for p in pending_of(world.recordings[rank])]
    places = {rank: where_text(world.recordings[rank]) for rank in stall.missing}
    known = [f"rank {rank} is in {place}" for rank, place in places.items() if place]
    where = f" ({known[0]})" if known else ""
    if instead:
        return (
            "Ranks have to submit the same operations, by the same names: look for a condition "
            "that differs between them, such as if rank() == 0, or loops with different numbers of "
            f"steps{where}."
        )
    return (
        "It is slower, does something that does not end, or left its loop: look at where it is"
        f"{where}."
    )


def _stuck(world: RecordedWorld, stuck: Stuck) -> Finding:
    peer = stuck.waiting_for
    awaited = "" if peer is None else f", waiting for {named_ranks([peer], world.names)}"
    lines = () if peer is None else tuple(_described(world, peer))
    return problem(
        "stuck",
        f"{capital(named_ranks([stuck.rank], world.names))} has been in the middle of a "
        f"collective for {duration_text(stuck.age_ns)}{awaited}.",
        "Look whether that process is stopped, swapping, or its network is gone "
        "(horovodrun --check-network).",
        (stuck.rank,) if peer is None else (peer,),
        lines,
        {"seconds": stuck.age_ns / 1e9, "waiting_for": peer},
    )
