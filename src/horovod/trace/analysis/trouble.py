"""What went wrong: operations and collectives that have not ended, deaths and mismatches.

An operation starts when all ranks have submitted it. So ranks diverge at one that does not start:
the *ready* ranks have submitted it, the *missing* ones have not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from horovod.errors import ErrorCode
from horovod.trace.operations import Bucket, Operation, buckets_of, operations_of
from horovod.trace.recording import EventKind, Label, Recording

_TAIL = 8192  # the events that are searched for a rank's last operations
_JOIN = 6  # horovod.core.operations.Kind
_WORLD_ENDED = (ErrorCode.PEER_LOST, ErrorCode.TIMEOUT, ErrorCode.ABORTED)


class Pending(NamedTuple):
    """An operation that a rank has submitted, and that has not started for ``age_ns``."""

    rank: int
    label: Label
    age_ns: int


class Stall(NamedTuple):
    """An operation that some ranks have submitted and others not.

    ``unknown`` ranks have no recording. The first of the ready ranks has waited for ``age_ns``.
    """

    label: Label
    ready: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    age_ns: int


class Stuck(NamedTuple):
    """A rank in a running collective; ``waiting_for`` is the rank it waits for, if known."""

    rank: int
    bucket: Bucket
    waiting_for: int | None
    age_ns: int


def has_left(recording: Recording) -> bool:
    """Whether the rank had shut down, or failed."""
    return bool(len(recording.of_kind(EventKind.LEFT, EventKind.FAILED)))


def lost_its_peer(recording: Recording) -> bool:
    """Whether the world has ended for this rank because another rank had ended."""
    return ErrorCode.PEER_LOST in recording.of_kind(EventKind.FAILED)["value"]


def pending_of(recording: Recording) -> list[Pending]:
    """The rank's operations that have not started, the oldest first.

    That includes operations that failed because the world ended: they waited until then.
    """
    events = recording.of_kind(EventKind.SUBMIT, EventKind.FUSED, EventKind.ERROR)
    waiting: dict[int, int] = {}  # submission times by label
    found: list[tuple[int, int]] = []  # labels of failed operations, and how long they waited
    for kind, subject, value, time_ns in events[["kind", "subject", "value", "time_ns"]].tolist():
        if kind == EventKind.SUBMIT:
            waiting[subject] = time_ns
            continue
        since_ns = waiting.pop(subject, None)
        if since_ns is not None and kind == EventKind.ERROR and value in _WORLD_ENDED:
            found.append((subject, time_ns - since_ns))
    found += [(label, recording.written_ns - since_ns) for label, since_ns in waiting.items()]
    return [
        Pending(recording.rank, recording.labels[label], age_ns)
        for label, age_ns in sorted(found, key=lambda pair: -pair[1])
        if label in recording.labels
    ]


def find_stalls(recordings: Mapping[int, Recording], size: int) -> list[Stall]:
    """The operations that wait for ranks of a world of ``size``, the oldest first."""
    by_operation: dict[tuple[int, int], list[Pending]] = {}
    joined = set()
    for recording in recordings.values():
        for pending in pending_of(recording):
            if pending.label.kind == _JOIN:
                joined.add(pending.rank)
            key = (pending.label.process_set, pending.label.key)
            by_operation.setdefault(key, []).append(pending)
    stalls = []
    for (number, _), waiting in by_operation.items():
        ready = {pending.rank for pending in waiting}
        members = set(range(size)) if number == 0 else _members(recordings, number)
        absent = members - ready - (joined if waiting[0].label.kind != _JOIN else set())
        stalls.append(
            Stall(
                label=waiting[0].label,
                ready=tuple(sorted(ready)),
                missing=tuple(sorted(absent & set(recordings))),
                unknown=tuple(sorted(absent - set(recordings))),
                age_ns=max(pending.age_ns for pending in waiting),
            )
        )
    return sorted(stalls, key=lambda stall: -stall.age_ns)


def _members(recordings: Mapping[int, Recording], process_set: int) -> set[int]:
    """The known ranks of the set: those that have submitted operations there."""
    return {
        rank
        for rank, recording in recordings.items()
        if np.any(
            (recording.events["process_set"] == process_set)
            & (recording.events["kind"] == EventKind.SUBMIT)
        )
    }


def find_stuck(recordings: Mapping[int, Recording]) -> list[Stuck]:
    """Ranks in a running collective, the longest running first."""
    found = []
    for rank, recording in recordings.items():
        last: dict[int, Bucket] = {}
        for bucket in buckets_of(_tail(recording)):
            last[bucket.process_set] = bucket
        for bucket in last.values():
            if bucket.done_ns is None and not has_left(recording):
                age_ns = recording.written_ns - bucket.started_ns
                found.append(Stuck(rank, bucket, bucket.waiting_for, age_ns))
    return sorted(found, key=lambda stuck: -stuck.age_ns)


def last_operations(recording: Recording, count: int) -> list[Operation]:
    """The operations that the rank has submitted last, the last one first."""
    operations = [op for op in operations_of(_tail(recording)) if op.submitted_ns is not None]
    return operations[: -count - 1 : -1]


def _tail(recording: Recording) -> Recording:
    return replace(recording, events=recording.events[-_TAIL:])


# Failures.


class Mismatch(NamedTuple):
    """An operation that failed with a mismatch, as each rank has submitted it."""

    labels: Mapping[int, Label]

    @property
    def name(self) -> str:
        """The operation's name."""
        return next(iter(self.labels.values())).name


def find_deaths(recordings: Mapping[int, Recording]) -> list[int]:
    """Ranks that were lost, in the order in which other ranks noticed it."""
    first: dict[int, int] = {}  # when a rank was noticed to be lost
    for recording in recordings.values():
        for event in recording.of_kind(EventKind.ALARM):
            rank, epoch_ns = int(event["subject"]), recording.epoch_ns(int(event["time_ns"]))
            first[rank] = min(epoch_ns, first.get(rank, epoch_ns))
    return sorted(first, key=first.__getitem__)


def find_mismatches(recordings: Mapping[int, Recording]) -> list[Mismatch]:
    """Operations that failed because the ranks' shapes, dtypes or kinds differ."""
    failed: dict[tuple[int, int], dict[int, Label]] = {}
    for recording in recordings.values():
        for event in recording.of_kind(EventKind.ERROR):
            label = recording.labels.get(int(event["subject"]))
            if event["value"] == ErrorCode.MISMATCH and label is not None:
                failed[label.process_set, label.key] = {}
    for rank, recording in sorted(recordings.items()):
        for label in recording.labels.values():  # the newest comes last
            if (label.process_set, label.key) in failed:
                failed[label.process_set, label.key][rank] = label
    return [Mismatch(labels) for labels in failed.values()]


def first_error(recordings: Mapping[int, Recording]) -> Recording | None:
    """The recording of the first rank that ended with an error."""
    ended = []
    for recording in recordings.values():
        failures = recording.of_kind(EventKind.FAILED)
        if len(failures) and recording.detail:
            ended.append((recording.epoch_ns(int(failures[0]["time_ns"])), recording))
    return min(ended, key=lambda pair: pair[0])[1] if ended else None
