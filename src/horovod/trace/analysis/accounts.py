"""What the ranks' steps consist of: computing, waiting for other ranks, moving data.

A rank *computes* unless its program waits for results. Of the waiting time, running collectives are
*transport*, except their waits for ranks that have not brought or taken their share. The rest is
*wait*: for ranks that have not submitted yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from horovod.trace.analysis.steps import Steps
from horovod.trace.operations import buckets_of
from horovod.trace.recording import EventKind, Recording, WaitPhase

# A set of times: array [n, 2] of begins and ends in ns, in order and without overlaps.
Intervals = NDArray[np.int64]

_LONG = 3.0  # longer steps contain something else, such as a checkpoint
_BUCKETS = (EventKind.BUCKET_START, EventKind.BUCKET_DONE)
_FOR_RANKS = (WaitPhase.STAGED, WaitPhase.REDUCED, WaitPhase.FINISHED)


class UsualStep(NamedTuple):
    """The parts of a rank's usual step, in ns; ``link_ns`` is a part of ``transport_ns``."""

    duration_ns: float
    compute_ns: float
    wait_ns: float
    transport_ns: float
    link_ns: float


class Account(NamedTuple):
    """The steps of one rank; each array has an entry for each step.

    The parts add up to ``duration_ns``. ``link_ns`` is the part of ``transport_ns`` in which the
    rank waited for bytes from another host. ``is_exact`` is false if the program's waits are not
    recorded, as in compiled graphs: then the rank counts as waiting from its last submission until
    all its operations are done.
    """

    rank: int
    duration_ns: NDArray[np.int64]
    compute_ns: NDArray[np.int64]
    wait_ns: NDArray[np.int64]
    transport_ns: NDArray[np.int64]
    link_ns: NDArray[np.int64]
    is_exact: bool

    @property
    def usual(self) -> UsualStep:
        """The mean of the steps, without those longer than three times the median."""
        is_usual = self.duration_ns <= _LONG * np.median(self.duration_ns)
        parts = (self.duration_ns, self.compute_ns, self.wait_ns, self.transport_ns, self.link_ns)
        return UsualStep(*(float(np.mean(part[is_usual])) for part in parts))


def accounts_of(recordings: Mapping[int, Recording], steps: Steps) -> list[Account]:
    """The account of each rank in ``steps``, by rank."""
    return [_account(recordings[rank], steps) for rank in sorted(steps.begins)]


def _account(recording: Recording, steps: Steps) -> Account:
    """The parts of this rank's steps."""
    edges = steps.begins[recording.rank]
    events = recording.events
    events = events[(events["time_ns"] >= edges[0]) & (events["time_ns"] <= edges[-1])]
    seen = events[events["kind"] == EventKind.BLOCKED]
    # A program with compiled graphs may still wait for a result now and then.
    is_exact = len(seen) * 2 >= steps.count
    blocked = _ended(seen) if is_exact else _inferred(events)
    seen_buckets = buckets_of(replace(recording, events=events[np.isin(events["kind"], _BUCKETS)]))
    runs = [(b.started_ns, b.done_ns) for b in seen_buckets if b.done_ns is not None]
    running = intersection(blocked, merged(runs))
    waits = intersection(running, _waits(events, _FOR_RANKS))
    links = intersection(running, _waits(events, (WaitPhase.LINK,)))
    duration = np.diff(edges)
    not_computing = covered(blocked, edges)
    transport = covered(running, edges) - covered(waits, edges)
    return Account(
        rank=recording.rank,
        duration_ns=duration,
        compute_ns=duration - not_computing,
        wait_ns=not_computing - transport,
        transport_ns=transport,
        link_ns=covered(links, edges),
        is_exact=is_exact,
    )


def _ended(waits: NDArray[np.void]) -> Intervals:
    """The times of waits, whose events have their end and duration."""
    ends = waits["time_ns"]
    return merged(np.stack([ends - waits["value"].astype(np.int64), ends], axis=1))


def _inferred(events: NDArray[np.void]) -> Intervals:
    """The times from the last submission until all operations are done."""
    pairs: list[tuple[int, int]] = []
    under_way: set[int] = set()
    fused: dict[tuple[int, int], set[int]] = {}
    last_submit = 0
    kinds = (EventKind.SUBMIT, EventKind.FUSED, EventKind.BUCKET_DONE, EventKind.ERROR)
    for event in events[np.isin(events["kind"], kinds)]:
        kind, subject, time_ns = int(event["kind"]), int(event["subject"]), int(event["time_ns"])
        number = int(event["process_set"])
        if kind == EventKind.SUBMIT:
            under_way.add(subject)
            last_submit = time_ns
            continue
        if kind == EventKind.FUSED:
            fused.setdefault((number, int(event["value"])), set()).add(subject)
            continue
        done = fused.pop((number, subject), set()) if kind == EventKind.BUCKET_DONE else {subject}
        if under_way and under_way <= done:
            pairs.append((last_submit, time_ns))
        under_way -= done
    return merged(pairs)


def _waits(events: NDArray[np.void], phases: Sequence[WaitPhase]) -> Intervals:
    """The times when a running collective waited for another rank in one of these phases."""
    is_wait = (events["kind"] == EventKind.WAITED) & np.isin(events["detail"], phases)
    return _ended(events[is_wait])


# Sets of times.


def merged(pairs: Iterable[tuple[int, int]] | Intervals) -> Intervals:
    """The union of these pairs of begin and end, in any order."""
    array = np.array(pairs if isinstance(pairs, np.ndarray) else list(pairs), np.int64)
    array = array.reshape(-1, 2)
    array = array[array[:, 1] > array[:, 0]]
    if not len(array):
        return array
    array = array[np.argsort(array[:, 0], kind="stable")]
    ends = np.maximum.accumulate(array[:, 1])
    is_first = np.concatenate(([True], array[1:, 0] > ends[:-1]))
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:] - 1, len(array) - 1)
    return np.stack([array[firsts, 0], ends[lasts]], axis=1)


def covered(intervals: Intervals, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The covered time from each of the ascending ``edges`` to the next one."""
    if not len(intervals):
        return np.zeros(max(0, len(edges) - 1), np.int64)
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.concatenate(([0], np.cumsum(lengths)))
    index = np.searchsorted(intervals[:, 0], edges, side="right")
    last = np.maximum(index - 1, 0)
    over = np.maximum(0, intervals[last, 1] - edges)
    until = np.where(index > 0, before[index] - over, 0)
    return np.asarray(np.diff(until), np.int64)


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """The times in both sets."""
    if not len(one) or not len(other):
        return np.zeros((0, 2), np.int64)
    edges = np.unique(np.concatenate([one.ravel(), other.ravel()]))
    is_in = (covered(one, edges) > 0) & (covered(other, edges) > 0)
    return merged(np.stack([edges[:-1][is_in], edges[1:][is_in]], axis=1))
