"""Autotuning of a process through several worlds, on engines that are played."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from horovod import _native
from horovod.autotune import Autotuning
from horovod.autotune.knobs import Surroundings
from horovod.autotune.search import PAIRS
from horovod.errors import HorovodInternalError
from horovod.settings import Settings

AROUND = Surroundings(is_native=True, spans_hosts=False)
GIVEN = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CYCLE_TIME": "0"}


class Engine:
    """Makes steps at each look at it, faster ones with smaller blocks and other formats."""

    def __init__(self, lasts: int, joins_at: int = 1_000_000) -> None:
        self.tuned: list[Settings] = []
        self.is_done = threading.Event()
        self._lasts, self._joins_at = lasts, joins_at
        self._steps = 0
        self._times: list[int] = []

    def counts(self) -> dict[str, int]:
        now = self.tuned[-1] if self.tuned else Settings()
        sent_kb = 10_000 if now.link_compression == "none" else 2_500
        self._times += 5 * [sent_kb + now.allreduce_block_kb]
        names = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
        return {
            **{f"{name}_bytes": 1000 * len(self._times) for name in names},
            "steps": len(self._times),
            "join_operations": int(len(self._times) > self._joins_at),
        }

    def step_times(self, first: int) -> list[int]:
        return self._times[first:]

    def tune(self, settings: Settings) -> None:
        if len(self.tuned) == self._lasts:
            self.is_done.set()
            raise HorovodInternalError("the world is over")
        self.tuned.append(settings)


def begin(autotuning: Autotuning, engine: Engine, settings: Settings) -> None:
    autotuning.begin(cast(Any, engine), settings, AROUND, GIVEN)


def as_settings(settings: Settings) -> _native.Tuning:
    return cast(_native.Tuning, settings)


def settings_for(log: Path) -> Settings:
    return Settings(
        autotune=True,
        autotune_log=str(log),
        autotune_steps_per_sample=3,
        fusion_threshold_bytes=0,
    )


class Ended(logging.Handler):
    """Hears the line with which autotuning ends."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.unfinished: list[str] = []
        self._has_ended = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "the world has ended" in text:
            self.unfinished.append(text)
            return
        self.text = text
        self._has_ended.set()

    def wait(self) -> str:
        assert self._has_ended.wait(60)
        return self.text


@pytest.fixture
def ended() -> Iterator[Ended]:
    handler, logger = Ended(), logging.getLogger("horovod")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_the_next_world_goes_on_and_the_one_after_it_begins_with_the_result(
    tmp_path: Path, ended: Ended
) -> None:
    log = tmp_path / "log.csv"
    settings, autotuning = settings_for(log), Autotuning(as_settings)
    first = Engine(lasts=4)
    begin(autotuning, first, settings)
    assert first.is_done.wait(30)
    autotuning.end()
    (unfinished,) = ended.unfinished
    assert "in its search, without a result: that takes up to" in unfinished
    second = Engine(lasts=1000)
    begin(autotuning, second, settings)
    ended.wait()
    autotuning.end()
    # The sample that the end of the first world cut off is taken again.
    assert len(first.tuned) + len(second.tuned) == 20 + 2 * PAIRS + 1
    assert ended.unfinished == [unfinished]
    third = Engine(lasts=1000)
    begin(autotuning, third, settings)
    assert third.tuned == [second.tuned[-1]]
    assert third.tuned[0].allreduce_block_kb < 512
    rows = log.read_text().splitlines()
    assert len(rows) == 1 + 20 + 2 * PAIRS + 1
    assert rows[-1].endswith(",result")


def test_formats_that_are_not_allowed_any_more_are_forgotten(ended: Ended) -> None:
    autotuning = Autotuning(as_settings)
    around = Surroundings(is_native=True, spans_hosts=True)
    settings = Settings(
        autotune=True, autotune_steps_per_sample=3, autotune_link_compression=("int8",)
    )
    fixed = dict.fromkeys(
        (
            *("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_ALLREDUCE_BLOCK_KB"),
            "HOROVOD_SMALL_ALLREDUCE_BETWEEN_HOSTS_KB",
        ),
        "64",
    )
    first = Engine(lasts=1000)
    autotuning.begin(cast(Any, first), settings, around, fixed)
    assert "--link-compression int8" in ended.wait()
    autotuning.end()
    assert first.tuned[-1].link_compression == "int8"
    second = Engine(lasts=0)
    other = replace(settings, autotune_link_compression=("fp8",))
    autotuning.begin(cast(Any, second), other, around, fixed)
    assert second.is_done.wait(30)  # it is measured
    autotuning.end()
    assert not second.tuned


def test_join_ends_it_with_the_defaults(tmp_path: Path, ended: Ended) -> None:
    log = tmp_path / "log.csv"
    settings, autotuning = settings_for(log), Autotuning(as_settings)
    engine = Engine(lasts=1000, joins_at=200)
    begin(autotuning, engine, settings)
    ended.wait()
    autotuning.end()
    assert "the program has called join" in ended.text
    assert engine.tuned[-1] == settings
