"""Reports of processes of invented jobs."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from horovod.trace.recording import Label
from horovod.trace.report.facts import Job
from horovod.trace.report.merge import merged
from horovod.trace.report.page import page
from horovod.trace.report.process_record import ProcessRecord, World, record_from_bytes
from horovod.trace.report.summary import SIZE_CLASSES, Span, Summary

BEGIN_S = 1_760_000_000.0
HOSTILE = "</script><b>layers.3.weight&amp;\"'"
LATE = 3  # the rank that others wait for, if any
SETTINGS = {
    "settings": {"HOROVOD_CYCLE_TIME": "0", "HOROVOD_FUSION_THRESHOLD": "67108864"},
    "changed": ["HOROVOD_FUSION_THRESHOLD"],
    "versions": {"horovod": "1.0", "python": "3.12.1"},
}


def process_record(rank: int, size: int, seconds: int = 30, name: str = "grad") -> ProcessRecord:
    """The report of a process that ran for ``seconds``; steps take 20 ms."""
    made = ProcessRecord({"pid": 1000 + rank, "host": f"node-{rank // 8}", "worker": None})
    made.describe(SETTINGS)
    made.begin_world(BEGIN_S + 1, World("", rank, size, rank % 8, "native"))
    is_late = rank == LATE
    label = Label(7, 7, f"{name}.{rank % 3}", 0, 0, 6, 1, 1, (256, 128))
    for second in range(seconds):
        begin_s = BEGIN_S + 1 + second
        waiting = 0.01 if is_late else 0.3 + 0.1 * math.sin(second / 5 + rank)
        values = {"steps": 50, "step_s": 1.0, "bytes": 4e8, "blocked_s": waiting}
        made.count(begin_s, begin_s + 1, {**values, "tensors": 500, "buckets": 50})
        made.add(_summary(second, waiting, is_late), 10**9, int(BEGIN_S * 1e9), lambda _: label)
    return made


def _summary(second: int, waiting: float, is_late: bool) -> Summary:
    numbers = np.arange(second * 50, second * 50 + 50)
    slack_ns = 1_000 if is_late else 6_000_000
    counts = np.bincount([3], [50], SIZE_CLASSES).astype(np.int64)
    span = Span(
        label=7,
        process_set=0,
        bucket=second * 50,
        size_bytes=131072,
        submitted_ns=second * 10**9,
        started_ns=second * 10**9 + slack_ns,
        done_ns=second * 10**9 + slack_ns + 500_000,
        slack_ns=slack_ns,
        was_last=is_late,
        gap_ns=5_000_000,
        held_by=second * 50,
        held_ns=slack_ns,
    )
    return Summary(
        covered_ns=10**9,
        waiting_ns=int(waiting * 1e9),
        by_tensors=counts,
        by_bytes=counts,
        slow=[span],
        late=[span] if is_late else [],
        process_sets=np.zeros(50, np.int64),
        numbers=numbers,
        slacks_ns=np.full(50, slack_ns),
    )


def job(seconds: int = 32, status: int = 0, outcome: str = "") -> Job:
    said = [(BEGIN_S, "starting 2 processes: python train.py")]
    return Job("python train.py --lr 0.1", BEGIN_S, BEGIN_S + seconds, status, outcome, said)


def records(size: int, seconds: int = 30, name: str = "grad") -> list[dict[str, Any]]:
    """The reports of all ranks; ranks above 7 copy rank 7 except for their names."""
    told = [
        record_from_bytes(process_record(rank, size, seconds, name).to_bytes())
        for rank in range(min(size, 8))
    ]
    for rank in range(8, size):
        who = {"pid": 1000 + rank, "host": f"node-{rank // 8}", "worker": None}
        told.append(
            {**told[7], "process": who, "worlds": [[BEGIN_S + 1, "1", rank, size, "native"]]}
        )
    return told


@cache
def made_page(size: int, *, seconds: int = 30, name: str = "grad", trials: int = 0) -> str:
    """The page of a job of ``size`` ranks."""
    told = records(size, seconds, name)
    told[0]["trials"] = [
        [BEGIN_S + number, {"cycle_time_ms": 0.5 * number}, 1e9 + number, number == 2]
        for number in range(trials)
    ]
    return page(merged(job(seconds + 2), told))
