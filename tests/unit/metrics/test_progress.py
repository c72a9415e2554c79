"""Ranks write their progress into memory that their launcher reads."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from horovod.metrics import progress
from horovod.metrics.progress import VARIABLE, ProgressMemory, Row, open_progress


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PERIOD_S", 0.001)


def test_rows_of_ranks_arrive() -> None:
    with closing(ProgressMemory(3)) as memory:
        assert memory.rows() == {}
        written = threading.Event()
        reads = 0

        def read() -> dict[str, float]:
            nonlocal reads
            reads += 1
            if reads == 2:  # the first row is there
                written.set()
            return {"steps": 7.0, "blocked_seconds": 0.25}

        writer = open_progress(memory.environment, 2, read)
        assert writer is not None
        assert written.wait(30)
        (row,) = memory.rows().values()
        assert list(memory.rows()) == [2]
        assert row == Row(7, row.elapsed_ns, 250_000_000)
        writer.close()


def test_the_last_row_is_that_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PERIOD_S", 60)
    with closing(ProgressMemory(1)) as memory:
        numbers = {"steps": 7.0, "blocked_seconds": 0.0}
        writer = open_progress(memory.environment, 0, lambda: numbers)
        assert writer is not None
        writer.close()
        assert memory.rows()[0].steps == 7


def test_the_time_goes_on_over_worlds_as_the_counts_do() -> None:
    with closing(ProgressMemory(1)) as memory:
        elapsed_ns = []
        for _ in range(2):
            writer = open_progress(
                memory.environment, 0, lambda: {"steps": 1.0, "blocked_seconds": 0.0}
            )
            assert writer is not None
            time.sleep(0.02 if not elapsed_ns else 0)
            writer.close()
            elapsed_ns.append(memory.rows()[0].elapsed_ns)
        assert elapsed_ns[1] > elapsed_ns[0]


def test_memory_that_a_rank_has_cut_ends_no_launcher() -> None:
    with closing(ProgressMemory(3)) as memory:
        os.truncate(memory.environment[VARIABLE].rpartition(":")[0], 50)
        assert memory.rows() == {}


def test_a_rank_elsewhere_writes_nothing(tmp_path: Path) -> None:
    assert open_progress({}, 0, dict) is None
    with closing(ProgressMemory(2)) as memory:
        assert open_progress(memory.environment, 2, dict) is None  # it has no row there
        path, _, token = memory.environment[VARIABLE].rpartition(":")
        assert open_progress({VARIABLE: f"/proc/0/fd/0:{token}"}, 0, dict) is None
        other = tmp_path / "other"
        other.write_bytes(bytes(1000))
        assert open_progress({VARIABLE: f"{other}:{token}"}, 0, dict) is None
        assert other.read_bytes() == bytes(1000)
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        assert open_progress({VARIABLE: f"{fifo}:{token}"}, 0, dict) is None
    assert not os.path.exists(path)


@pytest.mark.parametrize("text", ["x", ":", "x:", ":x", "/nowhere:00"])
def test_what_names_no_memory_is_ignored(text: str) -> None:
    assert open_progress({VARIABLE: text}, 0, dict) is None
