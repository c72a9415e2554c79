"""The examination of a job's recordings: findings, and figures for each rank. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from horovod.launch.doctor.advice import (
    find_clock_differences,
    find_fusion_advice,
    find_pace,
    find_setting_advice,
)
from horovod.launch.doctor.endings import (
    AFTER_DEATH,
    failures_of,
    find_endings,
    find_exceptions,
    find_exit,
    why_it_ended,
)
from horovod.launch.doctor.findings import Finding, Severity, capital, named_ranks, note, problem
from horovod.launch.doctor.hangs import find_hangs
from horovod.launch.doctor.memory_advice import find_memory_advice
from horovod.trace.analysis.accounts import Account, UsualStep, accounts_of
from horovod.trace.analysis.steps import FEWEST_STEPS, Steps, find_steps
from horovod.trace.analysis.trouble import find_deaths, has_left, lost_its_peer
from horovod.trace.outcome import Outcome
from horovod.trace.presence import RankState
from horovod.trace.worlds import RecordedWorld


class RankRow(NamedTuple):
    """A rank's row in the table."""

    rank: int
    name: str
    state: str
    step: UsualStep | None = None


class Examination(NamedTuple):
    """The result for a world."""

    world: RecordedWorld
    findings: tuple[Finding, ...]
    rows: tuple[RankRow, ...]
    steps: Steps | None

    @property
    def is_healthy(self) -> bool:
        """Whether there is no problem; there may be advice."""
        return all(finding.severity is not Severity.PROBLEM for finding in self.findings)


def examine(
    worlds: Sequence[RecordedWorld], states: Mapping[int, RankState], outcome: Outcome | None = None
) -> Examination:
    """Examine the last of ``worlds``; ``states`` has its ranks with a presence file."""
    world = worlds[-1]
    steps = find_steps(world.recordings)
    accounts = [] if steps is None else accounts_of(world.recordings, steps)
    step_ns = float(np.median([a.duration_ns for a in accounts])) if accounts else 0.0
    # A rank that raises an exception makes the others wait.
    has_raised = bool(find_exceptions(world, outcome))
    findings = [] if has_raised else find_hangs(world, states, step_ns)
    findings += find_endings(world, outcome, is_after_hang=bool(findings))
    findings += _gone(world, states)
    if outcome is not None and outcome.status != 0:
        findings.append(find_exit(outcome, has_cause=bool(findings)))
    if steps is None:
        findings.append(_too_few(world))
    else:
        findings += find_pace(world, steps, accounts)
        findings += find_fusion_advice(world, steps)
        findings += find_memory_advice(world, step_ns)
    findings += find_setting_advice(world, step_ns)
    findings += find_clock_differences(world)
    findings += _missing(world, states)
    findings += _earlier(worlds[:-1])
    failed = {failure.rank for failure in failures_of(world, outcome)}
    order = list(Severity)
    findings.sort(key=lambda finding: order.index(finding.severity))
    return Examination(world, tuple(findings), tuple(_rows(world, states, accounts, failed)), steps)


def _rows(
    world: RecordedWorld,
    states: Mapping[int, RankState],
    accounts: Sequence[Account],
    failed: Collection[int],
) -> list[RankRow]:
    by_rank = {account.rank: account for account in accounts}
    dead = set(find_deaths(world.recordings))
    return [
        RankRow(
            rank,
            name,
            "died" if rank in dead else _state(world, states, rank, has_failed=rank in failed),
            by_rank[rank].usual if rank in by_rank else None,
        )
        for rank, name in enumerate(world.names)
    ]


def _state(
    world: RecordedWorld, states: Mapping[int, RankState], rank: int, *, has_failed: bool
) -> str:
    recording = world.recordings.get(rank)
    if recording is not None and lost_its_peer(recording):
        return "lost peer"
    if recording is not None and has_left(recording):
        return "failed" if has_failed or recording.reason == "error" else "ended"
    if rank not in states:
        return "no recording" if recording is None else "failed" if has_failed else "ended"
    state = states[rank]
    return "running" if state is RankState.ELSEWHERE and recording is not None else state.value


def _too_few(world: RecordedWorld) -> Finding:
    events = max(len(recording.events) for recording in world.recordings.values())
    return note(
        "too-few-steps",
        f"Nothing can be said about speed: fewer than {FEWEST_STEPS + 1} steps that repeat the "
        f"same names are in all recordings (of up to {events} events).",
        "Let it run longer, or give tensors the same names in each step.",
    )


def _gone(world: RecordedWorld, states: Mapping[int, RankState]) -> Iterator[Finding]:
    """Ranks whose process has disappeared, and whose death no rank has recorded."""
    known = {*world.recordings, *find_deaths(world.recordings)}
    gone = [rank for rank, state in states.items() if state is RankState.GONE and rank not in known]
    if gone:
        names = capital(named_ranks(gone, world.names))
        text = f"{names} ended without an error, as after SIGKILL."
        yield problem("gone", text, AFTER_DEATH, tuple(gone))


def _missing(world: RecordedWorld, states: Mapping[int, RankState]) -> Iterator[Finding]:
    if not world.missing:
        return
    silent = [rank for rank in world.missing if rank in states]
    names = named_ranks(world.missing, world.names)
    did = "" if not silent else f" Ranks {', '.join(map(str, silent))} did not answer in time."
    yield note(
        "missing",
        f"There is no recording of {names}.{did}",
        "For ranks of other machines set HOROVOD_RECORDER_DIR to a folder that all machines "
        "share, or copy their recordings into one folder and name that.",
        world.missing,
    )


def _earlier(worlds: Sequence[RecordedWorld]) -> Iterator[Finding]:
    lines = [
        f"world {world.number} of {world.size}: {why_it_ended(world) or 'ended well'}"
        for world in worlds
    ]
    if lines:
        text = f"The job had {len(lines)} world{'s' * (len(lines) > 1)} before this one:"
        yield note("earlier-worlds", text, lines=tuple(lines[-8:]))
