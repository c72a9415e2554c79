"""Many processes become one report."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_reports import BEGIN_S, LATE, job, process_record, records

from horovod.trace.report.facts import lateness_of
from horovod.trace.report.merge import collected, merged
from horovod.trace.report.process_record import World, record_from_bytes


def test_ranks_in_order_with_what_they_counted() -> None:
    report = merged(job(), reversed(records(4)))
    assert [row.name for row in report.rows] == ["0", "1", "2", "3"]
    assert report.size == 4
    row = report.rows[0]
    assert row.steps == 30 * 50
    assert row.mean_step_s == pytest.approx(0.02)
    assert row.size_bytes == pytest.approx(30 * 4e8)
    assert len(row.step_s) == report.columns
    assert (report.first_s, report.columns * report.column_s) == pytest.approx((1, 31))
    known = [value for value in row.rate if value is not None]
    assert known == pytest.approx([4e8] * len(known))
    assert row.step_s[-1] is None, "the process had ended"
    assert (report.buckets, report.seen_buckets, report.tensors) == (6000, 6000, 60000)
    assert report.settings["HOROVOD_FUSION_THRESHOLD"] == ("67108864", True)


def test_the_rank_that_others_wait_for() -> None:
    report = merged(job(), records(5))
    late = report.rows[LATE]
    assert late.lateness.last == late.lateness.compared > 10
    assert late.lateness.cost_s / late.lateness.last == pytest.approx(0.006, rel=0.01)
    assert all(row.lateness.last == 0 for row in report.rows if row is not late)
    assert late.waiting_share < min(row.waiting_share for row in report.rows if row is not late)
    assert {slow.waited_for for slow in report.slow if slow.rank != str(LATE)} == {f"rank {LATE}"}


def test_equal_ranks_hold_up_nobody() -> None:
    lateness = lateness_of({rank: [(("1", 0, n), 10 + rank) for n in range(8)] for rank in (0, 1)})
    assert [(found.compared, found.last) for found in lateness.values()] == [(8, 0), (8, 0)]
    assert lateness_of({0: [(("1", 0, 4), 9)]}) == {}


def test_a_wait_that_never_ended_is_in_the_chart() -> None:
    hanging = process_record(0, 2, seconds=30)
    hanging._pending_s = BEGIN_S + 11
    row = merged(job(), [record_from_bytes(hanging.to_bytes())]).rows[0]
    assert row.waiting[20:29] == [1.0] * 9
    assert row.waiting[5] < 0.5


def test_a_new_world_and_a_process_that_takes_a_rank() -> None:
    first, second, third = (
        process_record(0, 2),
        process_record(1, 2, seconds=5),
        process_record(1, 2, seconds=3),
    )
    first.begin_world(BEGIN_S + 20, World("w2/", 0, 1, 0, "native"))
    first.note(BEGIN_S + 19.5, "failure", "rank 1 was lost")
    third.note(BEGIN_S + 19.9, "failure", "rank 1 was lost")
    report = merged(job(), [record_from_bytes(each.to_bytes()) for each in (first, second, third)])
    assert [row.name for row in report.rows] == ["0", "1 (pid 1001)", "1 (pid 1001)"]
    told = [(event.kind, event.ranks, event.text) for event in report.events]
    assert told == [
        ("launcher", "", "starting 2 processes: python train.py"),
        ("world", "", "a world of 2 processes began"),
        ("failure", "ranks 0, 1 (pid 1001)", "rank 1 was lost"),
        ("world", "", "a world of 1 process began, after 2 processes"),
    ]


def test_versions_that_differ_are_told_with_their_ranks() -> None:
    told = [process_record(rank, 4, seconds=2) for rank in range(4)]
    told[2].describe({"versions": {"horovod": "1.0", "torch": "2.4"}})
    report = merged(job(), [record_from_bytes(each.to_bytes()) for each in told])
    assert report.versions["horovod"] == {"1.0": ""}
    assert report.versions["torch"] == {"2.4": "rank 2"}


def test_a_job_is_as_old_as_its_processes() -> None:
    young = replace(job(), begin_s=BEGIN_S + 25)
    report = merged(young, records(1))
    assert report.job.begin_s == BEGIN_S + 1
    assert report.rows[0].begin_s == 0


def test_what_is_broken_is_left_out() -> None:
    good = process_record(0, 1, seconds=2).to_bytes()
    report, problems = collected(job(), [b"nonsense", good])
    assert len(report.rows) == len(problems) == 1


def test_a_job_that_told_nothing() -> None:
    report = merged(job(status=1, outcome="horovodrun: no host\n"), [])
    assert (report.rows, report.size, report.columns) == ([], 0, 32)
