"""What a process tells the report of its job, through a real store."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from horovod.metrics import sampling
from horovod.metrics.counters import CounterTotals
from horovod.metrics.sampling import Sampler, log_metrics, note_sample, open_sampler
from horovod.rendezvous.bootstrap import ProcessInfo
from horovod.rendezvous.store.client import REPORT_KEYS
from horovod.rendezvous.store.server import StoreServer
from horovod.settings import Settings
from horovod.trace.recording import EVENT_DTYPE, LABEL_DTYPE, EventKind
from horovod.trace.report.process_record import COLUMNS, record_from_bytes

SECRET = b"s" * 32
ME = ProcessInfo(1, 2, 1, 2, 0, 1, "here", "horovodrun")


class Recorder:
    """Has recorded one allreduce of ``x``, an hour ago."""

    def events_since(self, begin: int, most: int) -> tuple[int, bytes]:
        now = time.monotonic_ns() - 3600 * 10**9
        kinds = (EventKind.SUBMIT, EventKind.BUCKET_START, EventKind.FUSED, EventKind.BUCKET_DONE)
        rows = [(now + i * 1000, kind, 0, 0, 0, 0) for i, kind in enumerate(kinds)]
        return 4, np.array(rows, EVENT_DTYPE)[begin:].tobytes()

    def label(self, id: int) -> bytes:
        entry = np.zeros(1, LABEL_DTYPE)
        entry["name"][0, 0] = ord("x")
        entry["name_length"] = 1
        return entry.tobytes()[8:]


def read() -> dict[str, float]:
    return {**CounterTotals().read(None), "steps": 3, "allreduce_bytes": 12, "buckets": 1}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoreServer]:
    monkeypatch.setattr(sampling, "_process", None)
    with StoreServer(SECRET) as server:
        for name, value in {
            sampling.REPORT: "1",
            "HOROVOD_RANK": "1",
            "HOROVOD_SIZE": "2",
            "HOROVOD_LOCAL_RANK": "1",
            "HOROVOD_LOCAL_SIZE": "2",
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": server.address[0],
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.address[1]),
            "_HOROVOD_SECRET_KEY": base64.b64encode(SECRET).decode(),
        }.items():
            monkeypatch.setenv(name, value)
        yield server


Begin = Callable[[ProcessInfo], "Sampler | None"]


@pytest.fixture
def begin() -> Begin:
    settings = Settings(cycle_time_ms=2.0)
    return lambda identity: open_sampler(identity, settings, "native", Recorder(), read)


def test_all_worlds_of_a_process_are_one_story(server: StoreServer, begin: Begin) -> None:
    for rank in (1, 0):
        sampler = begin(replace(ME, rank=rank))
        assert sampler is not None
        note_sample({"cycle_time_ms": 1.0}, 5e8, is_chosen=rank == 0)
        sampler.close()
    (told,) = server.found(REPORT_KEYS).values()
    record = record_from_bytes(told)
    assert [world[1:4] for world in record["worlds"]] == [["1", 1, 2], ["2", 0, 2]]
    assert record["about"]["changed"] == ["HOROVOD_CYCLE_TIME"]
    assert {"horovod", "python", "numpy", "system"} <= set(record["about"]["versions"])
    assert [entry["name"] for entry in record["slow"]] == ["x"]
    assert [trial[1:] for trial in record["trials"]] == [
        [{"cycle_time_ms": 1.0}, 5e8, False],
        [{"cycle_time_ms": 1.0}, 5e8, True],
    ]


def test_what_the_program_logs(server: StoreServer, begin: Begin) -> None:
    sampler = begin(ME)
    assert sampler is not None
    log_metrics({"loss": np.float32(0.5)}, 10, samples=32)
    log_metrics({"loss": 0.25, "accuracy": 1}, step=11)
    log_metrics(samples=32)
    sampler.close()
    (told,) = server.found(REPORT_KEYS).values()
    record = record_from_bytes(told)
    assert sum(row[2 + COLUMNS.index("samples")] for row in record["rows"]) == 64
    logged = [row["loss"] for row in record["logged"] if "loss" in row]
    assert (sum(total for total, _ in logged), sum(count for _, count in logged)) == (0.75, 2)
    assert record["last_logged"] == {"loss": [0.25, 11], "accuracy": [1.0, 11]}


@pytest.mark.parametrize(
    ("metrics", "samples"),
    [({"": 1}, 0), ({"x" * 65: 1}, 0), ({"loss": "much"}, 0), ({"loss": None}, 0), ({}, -1)],
)
def test_what_cannot_be_logged(metrics: dict[str, Any], samples: float) -> None:
    with pytest.raises((TypeError, ValueError), match="log_metrics: "):
        log_metrics(metrics, samples=samples)


@pytest.mark.parametrize("step", [-1, "first", float("nan"), float("inf"), 2**63])
def test_what_is_no_step(step: Any) -> None:
    with pytest.raises(ValueError, match="log_metrics: step: "):
        log_metrics({"loss": 1.0}, step)


def test_numbers_as_large_as_a_float_can_be(server: StoreServer, begin: Begin) -> None:
    sampler = begin(ME)
    assert sampler is not None
    for value in (1.7e308, 1.7e308, 10**400, -(10**400)):
        log_metrics({"loss": value}, 3, samples=1)
    with pytest.raises(ValueError, match="samples is"):
        log_metrics(samples=1e308)
    sampler.close()
    (told,) = server.found(REPORT_KEYS).values()
    record = record_from_bytes(told)
    assert all(row == {} for row in record["logged"])
    assert [text for _, kind, text in record["events"] if kind == "value"] == [
        "loss is 1.7e+308 at step 3"
    ]


def test_without_a_report_nothing_runs(
    server: StoreServer, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begin(replace(ME, launcher="torchrun")) is None
    monkeypatch.delenv(sampling.REPORT)
    assert begin(ME) is None
    note_sample({"cycle_time_ms": 1.0}, 1.0)
    log_metrics({"loss": 1.0})
    assert server.found(REPORT_KEYS) == {}


def test_a_store_that_is_gone_does_not_matter(server: StoreServer, begin: Begin) -> None:
    server.close()
    sampler = begin(ME)
    assert sampler is not None
    sampler.close()
    assert sampling._process is not None
    assert sampling._process._store is None


def test_a_forked_child_tells_nothing(server: StoreServer, begin: Begin) -> None:
    sampler = begin(ME)
    assert sampler is not None
    sampler.close()
    sampler.abandon()
    assert sampling._process is None
    note_sample({"cycle_time_ms": 1.0}, 1.0)
