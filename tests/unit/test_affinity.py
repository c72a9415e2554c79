"""Which core the engine's threads stay on."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from horovod.core.base import cores as cores_module
from horovod.core.base.cores import core_of, on_core, usable_cores
from horovod.errors import SettingError


@pytest.mark.parametrize(
    ("cores", "local_rank", "core"),
    [((), 0, None), ((), 3, None), ((2,), 0, 2), ((2,), 3, 2), ((4, 0), 0, 4), ((4, 0), 1, 0)],
)
def test_one_core_is_for_all_and_several_are_by_local_rank(
    cores: tuple[int, ...], local_rank: int, core: int | None
) -> None:
    assert core_of(cores, local_rank) == core


def test_a_list_that_is_too_short() -> None:
    text = "HOROVOD_THREAD_AFFINITY='4,0': local rank 2 has no core in this list of 2"
    with pytest.raises(SettingError, match=text):
        core_of((4, 0), 2)


def cores_of_a_new_thread() -> set[int]:
    seen: list[set[int]] = []
    thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
    thread.start()
    thread.join()
    return seen[0]


def test_what_is_started_there_stays_and_the_starter_returns() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    with on_core(core):
        assert cores_of_a_new_thread() == {core}
    assert os.sched_getaffinity(0) == before
    with on_core(None):
        assert cores_of_a_new_thread() == before


def test_the_starter_returns_after_an_error_too() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyError), on_core(min(before)):
        raise KeyError
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("core", [60000, 65535])
def test_a_core_that_does_not_exist(core: int) -> None:
    before = os.sched_getaffinity(0)
    text = f"HOROVOD_THREAD_AFFINITY: core {core} cannot be used here .Invalid argument.; this proc"
    with pytest.raises(SettingError, match=text), on_core(core):
        pass
    assert os.sched_getaffinity(0) == before


def test_cores_are_told_as_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cores: set[int]) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {8, 0, 1, 2, 5})
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with pytest.raises(SettingError, match=r"this process runs on 0-2,5,8$"), on_core(7):
        pass


def test_a_sandbox_may_refuse_to_tell_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> set[int]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_a_quota_of_both_versions_of_cgroups_counts(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(cores_module, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cores() == cores
