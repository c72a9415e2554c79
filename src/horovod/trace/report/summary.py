"""Summarises the newest events of a flight recorder: waits, buckets, slow operations.

It works on whole arrays, because its thread shares Python's lock with the training.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from horovod.trace.recording import EVENT_DTYPE, EventKind

SIZE_CLASSES = 48  # powers of two
LONG_NS = 50_000_000  # longer waits are kept one by one
_MOST_SPANS = 8
_MOST_OF_BUCKET = 2
_CANDIDATES = 256
_MOST_NOTES = 16
_NOTED = (EventKind.ERROR, EventKind.ALARM, EventKind.STALL, EventKind.FAILED)
_Array = NDArray[np.int64]


class Span(NamedTuple):
    """One operation of this rank, from its submission to its end; times are as in events.

    Other ranks delayed the begin of its bucket by ``slack_ns``. Until then the bucket ``held_by``,
    this one or one before it, was delayed longest, by ``held_ns``. The longest wait in the bucket
    took ``waited_ns``, for rank ``waited_for``. ``was_last``: this rank was the last of its host to
    submit it. The rank had no event for ``gap_ns`` before the submission.
    """

    label: int
    process_set: int
    bucket: int
    size_bytes: int
    submitted_ns: int
    started_ns: int
    done_ns: int
    slack_ns: int
    was_last: bool
    gap_ns: int
    held_by: int = -1
    held_ns: int = 0
    waited_ns: int = 0
    waited_for: int = -1


@dataclass(frozen=True)
class Summary:
    """The events of one period, of which ``covered_ns`` are known.

    ``waiting_ns`` is the sum of short waits for other ranks; ``long_waits`` are begins and ends.
    ``by_tensors`` and ``by_bytes`` count buckets by powers of two. ``slow`` are the operations that
    took longest, ``late`` those that this rank submitted last, after a long gap. ``process_sets``,
    ``numbers`` and ``slacks_ns`` are of all buckets. ``pending_ns`` is the time since when this
    rank does nothing but wait for others, or 0. ``notes`` are events for the report.
    """

    covered_ns: int
    waiting_ns: int = 0
    long_waits: list[tuple[int, int]] = field(default_factory=list)
    by_tensors: _Array = field(default_factory=lambda: np.zeros(SIZE_CLASSES, np.int64))
    by_bytes: _Array = field(default_factory=lambda: np.zeros(SIZE_CLASSES, np.int64))
    slow: list[Span] = field(default_factory=list)
    late: list[Span] = field(default_factory=list)
    process_sets: _Array = field(default_factory=lambda: np.zeros(0, np.int64))
    numbers: _Array = field(default_factory=lambda: np.zeros(0, np.int64))
    slacks_ns: _Array = field(default_factory=lambda: np.zeros(0, np.int64))
    pending_ns: int = 0
    notes: list[np.void] = field(default_factory=list)


@dataclass
class _Buckets:
    """The complete buckets, by process set and number."""

    keys: _Array
    process_sets: _Array
    numbers: _Array
    started: _Array
    done: _Array
    waited: _Array
    tensors: _Array
    last_submitted: _Array
    size_bytes: _Array
    slack: _Array

    def index_of(self, keys: _Array) -> tuple[_Array, NDArray[np.bool_]]:
        """The indices of these keys, and whether they exist."""
        if not len(self.keys):
            return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return index, self.keys[index] == keys


class Summarizer:
    """Takes the events of one world in pieces; what has not ended is kept for the next piece."""

    def __init__(self) -> None:
        self._open = np.zeros(0, EVENT_DTYPE)
        self._done_ns: dict[int, int] = {}  # the last bucket's end, by process set
        self._last_ns = 0

    def take(
        self, events: NDArray[np.void], begin_ns: int, end_ns: int, *, is_whole: bool
    ) -> Summary:
        """Summarise the ``events`` since ``begin_ns``, the end of the last piece.

        Unless it ``is_whole`` the first events are missing.
        """
        covered_ns = end_ns - begin_ns
        if not is_whole:
            self._open = self._open[:0]
            self._done_ns.clear()
            covered_ns = end_ns - int(events["time_ns"][0]) if len(events) else 0
        told = len(self._open)
        table = _Table(np.concatenate([self._open, events]), told, self._last_ns)
        buckets = table.complete_buckets(self._done_ns)
        running = table.running(buckets)
        pending_ns = 0 if len(running) else self._pending_since(table)
        self._open = table.unfinished(running)
        ends = zip(buckets.process_sets.tolist(), buckets.done.tolist(), strict=True)
        self._done_ns.update(ends)
        if len(events):
            self._last_ns = int(events["time_ns"][-1])
        long_waits, waiting_ns = _waits(table, buckets)
        slow, late = _spans(table, buckets)
        is_known = buckets.last_submitted > 0
        return Summary(
            covered_ns=covered_ns,
            waiting_ns=waiting_ns,
            long_waits=long_waits,
            by_tensors=_by_powers(buckets.tensors),
            by_bytes=_by_powers(buckets.size_bytes[is_known]),
            slow=slow,
            late=late,
            process_sets=buckets.process_sets[is_known],
            numbers=buckets.numbers[is_known],
            slacks_ns=buckets.slack[is_known],
            pending_ns=pending_ns,
            notes=list(events[np.isin(events["kind"], _NOTED)][:_MOST_NOTES]),
        )

    def _pending_since(self, table: _Table) -> int:
        """The submission of the last operation that has not begun, or the last bucket's end."""
        if not len(table.pending):
            return 0
        return max(int(table.time[table.pending].max()), *self._done_ns.values(), 0)


class _Table:
    """Events in columns, with operations' submissions and starts found in them."""

    def __init__(self, events: NDArray[np.void], told: int, last_ns: int) -> None:
        self.events = events
        self.told = told  # the number of events from earlier pieces
        self.time: _Array = events["time_ns"]
        self.kind = events["kind"]
        self.subject: _Array = events["subject"].astype(np.int64)
        self.value: _Array = events["value"].astype(np.int64)
        self.process_set: _Array = events["process_set"].astype(np.int64)
        self._last_ns = last_ns
        self.submits, self.starts, self.pending = self._operations()

    def _operations(self) -> tuple[_Array, _Array, _Array]:
        """Submissions and begins of operations, and submissions of those that have not begun."""
        kinds = (EventKind.SUBMIT, EventKind.FUSED, EventKind.ERROR)
        found = np.flatnonzero(np.isin(self.kind, kinds))
        order = found[np.argsort(self.subject[found], kind="stable")]
        is_submit = self.kind[order] == EventKind.SUBMIT
        # The next event of the same label, if there is one, belongs to the operation.
        has_next = np.zeros(len(order), np.bool_)
        has_next[:-1] = (self.subject[order[1:]] == self.subject[order[:-1]]) & ~is_submit[1:]
        is_begun = is_submit & has_next
        is_begun[:-1] &= self.kind[order[1:]] == EventKind.FUSED
        begun = np.flatnonzero(is_begun)
        submits, starts = order[begun], order[begun + 1]
        by_start = np.argsort(starts)
        return submits[by_start], starts[by_start], np.sort(order[is_submit & ~has_next])

    def bucket_keys(self, index: _Array, number: _Array) -> _Array:
        return (self.process_set[index] << 32) | number[index]

    def complete_buckets(self, done_ns: dict[int, int]) -> _Buckets:
        begun = np.flatnonzero(self.kind == EventKind.BUCKET_START)
        ended = np.flatnonzero(self.kind == EventKind.BUCKET_DONE)
        begun_keys = self.bucket_keys(begun, self.subject)
        ended_keys = self.bucket_keys(ended, self.subject)
        keys, first, second = np.intersect1d(begun_keys, ended_keys, return_indices=True)
        begun, ended = begun[first], ended[second]
        count = len(keys)
        buckets = _Buckets(
            keys=keys,
            process_sets=keys >> 32,
            numbers=keys & 0xFFFFFFFF,
            started=self.time[begun],
            done=self.time[ended],
            waited=self.value[ended],
            tensors=self.value[begun],
            last_submitted=np.zeros(count, np.int64),
            size_bytes=np.zeros(count, np.int64),
            slack=np.zeros(count, np.int64),
        )
        index, is_there = buckets.index_of(self.bucket_keys(self.starts, self.value))
        index = index[is_there]
        np.maximum.at(buckets.last_submitted, index, self.time[self.submits[is_there]])
        np.add.at(buckets.size_bytes, index, self.value[self.submits[is_there]])
        buckets.slack = _slack(buckets, done_ns)
        return buckets

    def gaps(self, index: _Array) -> _Array:
        """The time without events before these; 0 for events of earlier pieces."""
        before = np.where(index > self.told, self.time[index - 1], self._last_ns)
        before = np.where(before > 0, before, self.time[index])
        return np.where(index >= self.told, np.maximum(self.time[index] - before, 0), 0)

    def running(self, buckets: _Buckets) -> _Array:
        """The begins of buckets that are not complete."""
        begun = np.flatnonzero(self.kind == EventKind.BUCKET_START)
        return begun[~buckets.index_of(self.bucket_keys(begun, self.subject))[1]]

    def unfinished(self, running: _Array) -> NDArray[np.void]:
        """The events of operations and buckets that have not ended."""
        keys = self.bucket_keys(running, self.subject)
        is_in = np.isin(self.bucket_keys(self.starts, self.value), keys)
        kept = [self.pending, running, self.submits[is_in], self.starts[is_in]]
        if len(running):
            waits = np.flatnonzero(self.kind == EventKind.WAITED)
            kept.append(waits[waits > running.min()])
        found: NDArray[np.void] = self.events[np.unique(np.concatenate(kept))]
        return found


def _slack(buckets: _Buckets, done_ns: dict[int, int]) -> _Array:
    """How much earlier each bucket could have begun without other ranks."""
    before = np.zeros(len(buckets.keys), np.int64)
    before[1:] = buckets.done[:-1]
    is_first = np.ones(len(buckets.keys), np.bool_)
    is_first[1:] = buckets.process_sets[1:] != buckets.process_sets[:-1]
    for index in np.flatnonzero(is_first):
        before[index] = done_ns.get(int(buckets.process_sets[index]), 0)
    ready = np.maximum(buckets.last_submitted, before)
    slack = np.maximum(buckets.started - ready, 0)
    return np.where(buckets.last_submitted > 0, slack, 0)


def _waits(table: _Table, buckets: _Buckets) -> tuple[list[tuple[int, int]], int]:
    """The long waits, and the sum of the others."""
    is_long = buckets.slack >= LONG_NS
    waits = [
        (int(start - slack), int(start))
        for start, slack in zip(buckets.started[is_long], buckets.slack[is_long], strict=True)
    ]
    short_ns = int(buckets.slack[~is_long].sum() + buckets.waited.sum())
    for index in np.flatnonzero((table.kind == EventKind.WAITED) & (table.value >= LONG_NS)):
        end, took = int(table.time[index]), int(table.value[index])
        if index >= table.told:
            waits.append((end - took, end))
        is_inside = (buckets.started <= end) & (end <= buckets.done)
        if (is_inside & (buckets.process_sets == table.process_set[index])).any():
            short_ns -= took
    return waits, max(0, short_ns)


def _spans(table: _Table, buckets: _Buckets) -> tuple[list[Span], list[Span]]:
    index, is_there = buckets.index_of(table.bucket_keys(table.starts, table.value))
    index, submits = index[is_there], table.submits[is_there]
    took = buckets.done[index] - table.time[submits]
    slow = _few_of_each(_largest(took, _CANDIDATES), index)[:_MOST_SPANS]
    was_last = table.events["detail"][submits] != 0
    gaps = np.where(was_last, table.gaps(submits), 0)
    late = [i for i in _largest(gaps, _MOST_SPANS) if gaps[i] > 0]
    waits = np.flatnonzero(table.kind == EventKind.WAITED)

    def span(i: int) -> Span:
        submit, bucket = int(submits[i]), int(index[i])
        started, done = int(buckets.started[bucket]), int(buckets.done[bucket])
        is_inside = (table.time[waits] >= started) & (table.time[waits] <= done)
        is_inside &= table.process_set[waits] == table.process_set[submit]
        inside = waits[is_inside]
        longest = int(inside[np.argmax(table.value[inside])]) if len(inside) else -1
        held_by, held_ns = _holder(buckets, bucket, int(table.time[submit]))
        return Span(
            label=int(table.subject[submit]),
            process_set=int(table.process_set[submit]),
            bucket=int(buckets.numbers[bucket]),
            size_bytes=int(table.value[submit]),
            submitted_ns=int(table.time[submit]),
            started_ns=started,
            done_ns=done,
            slack_ns=int(buckets.slack[bucket]),
            was_last=bool(was_last[i]),
            gap_ns=int(gaps[i]),
            held_by=held_by,
            held_ns=held_ns,
            waited_ns=int(table.value[longest]) if longest >= 0 else 0,
            waited_for=int(table.subject[longest]) if longest >= 0 else -1,
        )

    return [span(i) for i in slow], [span(int(i)) for i in late]


def _holder(buckets: _Buckets, bucket: int, submitted_ns: int) -> tuple[int, int]:
    """The bucket that was delayed longest while an operation of ``bucket`` was waiting."""
    is_before = (buckets.started > submitted_ns) & (buckets.started <= buckets.started[bucket])
    is_before &= buckets.process_sets == buckets.process_sets[bucket]
    before = np.flatnonzero(is_before)
    if not len(before):
        return int(buckets.numbers[bucket]), 0
    held = np.minimum(buckets.slack[before], buckets.started[before] - submitted_ns)
    longest = int(np.argmax(held))
    return int(buckets.numbers[before[longest]]), int(held[longest])


def _few_of_each(candidates: _Array, bucket: _Array) -> list[int]:
    """A few operations of each bucket, since all operations of a bucket are equally slow."""
    seen: Counter[int] = Counter()
    found = []
    for candidate in candidates.tolist():
        seen[int(bucket[candidate])] += 1
        if seen[int(bucket[candidate])] <= _MOST_OF_BUCKET:
            found.append(candidate)
    return found


def _largest(values: _Array, most: int) -> _Array:
    """The indices of the largest values, in descending order."""
    count = min(most, len(values))
    if not count:
        return np.zeros(0, np.int64)
    found = np.argpartition(values, len(values) - count)[-count:]
    return found[np.argsort(-values[found], kind="stable")]


def _by_powers(values: _Array) -> _Array:
    """The number of values in each class: 0 and 1, 2 and 3, 4 to 7, and so on."""
    _, exponents = np.frexp(np.maximum(values, 1).astype(np.float64))
    return np.bincount(np.minimum(exponents - 1, SIZE_CLASSES - 1), minlength=SIZE_CLASSES)
