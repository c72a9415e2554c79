"""The status line: its numbers and its words."""

from __future__ import annotations

import pytest

from horovod.launch.jobs import status_line
from horovod.launch.jobs.status_line import StatusLine, pace_between, pace_text, time_text
from horovod.metrics.progress import Row

S = 1_000_000_000


def test_the_rank_that_waits_least_is_the_one_waited_for() -> None:
    before = {0: Row(10, 10 * S, 0), 1: Row(10, 10 * S, 0)}
    after = {0: Row(20, 12 * S, S), 1: Row(20, 12 * S, 0)}
    pace = pace_between(before, after)
    assert pace is not None
    assert pace_text(pace) == "step 20, 200 ms a step, waiting 50% (for rank 1)"


def test_no_rank_is_named_where_all_wait_alike() -> None:
    pace = pace_between({}, {0: Row(4, 8 * S, S), 1: Row(4, 8 * S, S)})
    assert pace is not None
    assert pace_text(pace) == "step 4, 2 s a step, waiting 12%"


def test_a_rank_that_another_process_has_now_has_no_pace() -> None:
    before = {0: Row(10, 60 * S, 30 * S), 1: Row(10, 60 * S, 0)}
    after = {0: Row(20, 2 * S, S), 1: Row(20, 62 * S, 3 * S)}
    pace = pace_between(before, after)
    assert pace is not None
    assert pace_text(pace) == "step 20, 200 ms a step, waiting 100%"


def test_without_a_step_there_is_no_pace() -> None:
    rows = {0: Row(3, S, 0)}
    assert pace_between({}, {}) is None
    assert pace_between(rows, rows) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (41.4, "41 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_the_line_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(status_line.time, "monotonic", lambda: now)
    line = StatusLine(is_shown=True)
    assert list(line.environment) == ["_HOROVOD_PROGRESS"]
    assert line.text(2) is None
    now += 3
    assert line.text(2) == "2 ranks, 3 s"
    assert line.text(2) is None  # not due again
    rows = {0: Row(2, 2 * S, 0)}
    assert line._memory is not None
    monkeypatch.setattr(line._memory, "rows", lambda: rows)
    now += 3
    assert line.text(1) == "1 rank, 6 s, step 2, 1 s a step, waiting 0%"
    assert line.last(1) == "1 rank finished in 6 s; step 2, 1 s a step, waiting 0%"
    line.close()
    assert line.environment == {}


def test_where_no_terminal_is_only_the_end_is_told() -> None:
    line = StatusLine(is_shown=False)
    assert (line.environment, line.deadline, line.text(2)) == ({}, None, None)
    assert line.last(2) == "2 ranks finished in 0 s"
    line.close()
