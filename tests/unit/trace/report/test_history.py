"""Memory that is bounded, and sums that are not lost in it."""

from __future__ import annotations

import pytest
from made_reports import process_record

from horovod.trace.report.process_record import History, ProcessRecord, World, record_from_bytes


@pytest.mark.parametrize("seconds", [5, 100, 10_000])
def test_nothing_is_lost_when_rows_are_halved(seconds: int) -> None:
    history = History(capacity=8)
    for second in range(seconds):
        history.add(second, second + 1, {"steps": 2, "bytes": second})
    assert len(history.rows) <= 8
    assert sum(row.values["steps"] for row in history.rows) == 2 * seconds
    assert sum(row.values["bytes"] for row in history.rows) == seconds * (seconds - 1) / 2
    assert (history.rows[0].begin_s, history.rows[-1].end_s) == (0, seconds)
    ends = [row.end_s for row in history.rows[:-1]]
    assert ends == [row.begin_s for row in history.rows[1:]]


def test_time_between_two_worlds_is_in_no_row() -> None:
    history = History(capacity=8, resolution_s=4)
    history.add(0, 1, {"steps": 1})
    history.add(3, 3.5, {"steps": 1})
    assert [(row.begin_s, row.end_s) for row in history.rows] == [(0, 1), (3, 3.5)]


def test_a_long_wait_is_shared_out() -> None:
    history = History()
    for second in range(4):
        history.add(second, second + 1, {})
    history.spread("waiting_s", 0.5, 2.25)
    assert [row.values["waiting_s"] for row in history.rows] == [0.5, 1, 0.25, 0]


def test_a_process_record_fits_into_a_store_whatever_happens() -> None:
    made = process_record(0, 4, seconds=2000, name="\N{GREEK SMALL LETTER BETA}" * 100)
    for number in range(300):
        made.note(number, "failure", f"{number} " + "\N{SNOWMAN}" * 500)
        made.note_trial(number, {f"p{k}": number / 7 for k in range(12)}, 1 / 3, is_chosen=False)
    data = made.to_bytes()
    assert len(data) < 60_000
    record = record_from_bytes(data)
    assert len(record["rows"]) <= 240
    assert len(record["events"]) == 50
    assert 32 < len(record["slacks"]) <= 128


def test_buckets_that_are_kept_are_the_same_ones_on_all_ranks() -> None:
    short, long = (record_from_bytes(process_record(0, 2, seconds=s).to_bytes()) for s in (40, 300))
    kept = {number for _, _, number, _ in short["slacks"]}
    assert {n for _, _, n, _ in long["slacks"] if n < 2000} <= kept


@pytest.mark.parametrize("data", [b"", b"x", ProcessRecord({}).to_bytes()[:-5]])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no process record"):
        record_from_bytes(data)


def test_worlds_of_one_scope_are_told_apart() -> None:
    made = ProcessRecord({})
    for rank in (1, 0):
        made.begin_world(5.0, World("w/", rank, 2, 0, "native"))
    assert [world[1:4] for world in record_from_bytes(made.to_bytes())["worlds"]] == [
        ["w/1", 1, 2],
        ["w/2", 0, 2],
    ]
