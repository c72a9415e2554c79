"""What events say: waits before and in buckets, operations, and what has not ended."""

from __future__ import annotations

import time

import numpy as np

import horovod.numpy as hvd
from horovod.core import world
from horovod.trace.recording import EVENT_DTYPE, EventKind, label_from
from horovod.trace.report.summary import Summarizer, Summary

MS = 1_000_000
SUBMIT, START, FUSED = EventKind.SUBMIT, EventKind.BUCKET_START, EventKind.FUSED
DONE, WAITED, STALL = EventKind.BUCKET_DONE, EventKind.WAITED, EventKind.STALL


def events(*given: tuple[int, ...]) -> np.ndarray:
    """Kind, time in ms, subject, value and, if not 0, detail, of process set 0."""
    rows = [(t * MS, kind, (more or (0,))[0], 0, subject, value)
            for kind, t, subject, value, *more in given]  # fmt: skip
    return np.array(rows, EVENT_DTYPE)


def take(*given: tuple[int, ...]) -> Summary:
    found = events(*given)
    return Summarizer().take(found, 0, 1000 * MS, is_whole=True)


def test_nothing() -> None:
    summary = take()
    assert summary.waiting_ns == summary.pending_ns == 0
    assert summary.covered_ns == 1000 * MS
    assert not summary.slow
    assert not len(summary.numbers)


def test_a_bucket_of_two_tensors_that_waits_for_others() -> None:
    summary = take(
        (SUBMIT, 10, 1, 400),
        (SUBMIT, 12, 2, 600),
        (START, 30, 5, 2),
        (FUSED, 30, 1, 5),
        (FUSED, 30, 2, 5),
        (WAITED, 35, 3, 4 * MS),
        (DONE, 40, 5, 5 * MS),
    )
    assert summary.waiting_ns == 18 * MS + 5 * MS
    assert summary.long_waits == []
    assert summary.by_tensors.nonzero()[0].tolist() == [1]
    assert summary.by_bytes.nonzero()[0].tolist() == [9]  # 512 to 1023 bytes
    assert (summary.numbers.tolist(), summary.slacks_ns.tolist()) == ([5], [18 * MS])
    first, second = summary.slow
    assert (first.label, first.done_ns - first.submitted_ns, first.size_bytes) == (1, 30 * MS, 400)
    assert (first.waited_for, first.waited_ns, first.slack_ns) == (3, 4 * MS, 18 * MS)
    assert second.label == 2


def test_an_earlier_bucket_is_no_wait_for_ranks() -> None:
    summary = take(
        (SUBMIT, 10, 1, 4),
        (START, 10, 0, 1),
        (FUSED, 10, 1, 0),
        (SUBMIT, 11, 2, 4),
        (DONE, 50, 0, 0),
        (START, 52, 1, 1),
        (FUSED, 52, 2, 1),
        (DONE, 53, 1, 0),
    )
    assert summary.slacks_ns.tolist() == [0, 2 * MS]
    assert summary.waiting_ns == 2 * MS


def test_what_was_behind_a_bucket_that_was_held_up() -> None:
    summary = take(
        (SUBMIT, 10, 1, 4),
        (SUBMIT, 11, 2, 4),
        (START, 90, 4, 1),
        (FUSED, 90, 1, 4),
        (DONE, 91, 4, 0),
        (START, 91, 5, 1),
        (FUSED, 91, 2, 5),
        (DONE, 92, 5, 0),
    )
    second = summary.slow[1]
    assert (second.label, second.slack_ns) == (2, 0)
    assert (second.held_by, second.held_ns) == (4, 79 * MS)


def test_what_has_not_ended_is_told_when_it_has() -> None:
    summarizer = Summarizer()
    first = summarizer.take(events((SUBMIT, 100, 1, 4)), 0, 1000 * MS, is_whole=True)
    assert first.pending_ns == 100 * MS
    second = summarizer.take(
        events((START, 1500, 0, 1), (FUSED, 1500, 1, 0)), 1000 * MS, 2000 * MS, is_whole=True
    )
    assert second.pending_ns == 0, "its bucket runs"
    waits = events((WAITED, 2100, 7, 300 * MS), (DONE, 2200, 0, 310 * MS))
    third = summarizer.take(waits, 2000 * MS, 3000 * MS, is_whole=True)
    assert third.long_waits == [(100 * MS, 1500 * MS), (1800 * MS, 2100 * MS)]
    assert third.waiting_ns == 10 * MS
    assert third.slow[0].waited_for == 7
    fourth = summarizer.take(events(), 3000 * MS, 4000 * MS, is_whole=True)
    assert (fourth.waiting_ns, fourth.long_waits) == (0, [])


def test_who_comes_last_after_doing_nothing() -> None:
    summary = take(
        (SUBMIT, 10, 1, 4),
        (START, 10, 0, 1),
        (FUSED, 10, 1, 0),
        (DONE, 11, 0, 0),
        (SUBMIT, 400, 1, 4, 1),
        (START, 400, 1, 1),
        (FUSED, 400, 1, 1),
        (DONE, 401, 1, 0),
    )
    (late,) = summary.late
    assert (late.bucket, late.gap_ns, late.was_last) == (1, 389 * MS, True)


def test_after_a_gap_nothing_is_made_up() -> None:
    summarizer = Summarizer()
    summarizer.take(events((SUBMIT, 100, 1, 4)), 0, 1000 * MS, is_whole=True)
    found = events(
        (DONE, 1700, 3, 0), (SUBMIT, 1800, 1, 4), (STALL, 1900, 1, 60), (FUSED, 1901, 9, 4)
    )
    summary = summarizer.take(found, 1000 * MS, 2000 * MS, is_whole=False)
    assert summary.covered_ns == 300 * MS
    assert summary.pending_ns == 1800 * MS
    assert summary.waiting_ns == 0
    assert [int(note["kind"]) for note in summary.notes] == [STALL]
    assert not summary.slow


def test_the_events_of_an_engine() -> None:
    hvd.init()
    try:
        engine, begin_ns = world.engine(), time.monotonic_ns()
        before, _ = engine.events_since(0, 0)
        for _ in range(20):
            hvd.allreduce(np.ones((2, 3), np.float32), name="weight")
        end, data = engine.events_since(before, 10_000)
        found = np.frombuffer(data, EVENT_DTYPE)
        assert len(found) == end - before
        newest = engine.events_since(before, 5)
        assert newest == (end, data[-5 * EVENT_DTYPE.itemsize :])
        summary = Summarizer().take(found, begin_ns, time.monotonic_ns(), is_whole=True)
        assert len(summary.numbers) == 20
        slow = summary.slow[0]
        label = label_from(slow.label, engine.label(slow.label))
        assert (label.name, label.shape, slow.size_bytes) == ("allreduce.weight", (2, 3), 24)
        assert engine.label(10**6) == b""
    finally:
        hvd.shutdown()


def test_a_failed_operation_is_not_pending() -> None:
    summary = take((SUBMIT, 10, 1, 4), (EventKind.ERROR, 20, 1, 2))
    assert summary.pending_ns == 0
    assert len(summary.notes) == 1
