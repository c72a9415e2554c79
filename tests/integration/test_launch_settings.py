"""Options and configuration file of the real launcher, as its workers see them."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from launching import run

from horovod.settings import SETTINGS, Settings

pytestmark = pytest.mark.usefixtures("no_child_is_left")

WORKER = [sys.executable, str(Path(__file__).parent / "workers" / "settings_seen.py")]
CORES = sorted(os.sched_getaffinity(0))


def plain_environment(**more: str) -> dict[str, str]:
    names = {setting.env for setting in SETTINGS}
    return {**{name: os.environ[name] for name in os.environ if name not in names}, **more}


def told(*arguments: str, **environment: str) -> list[dict[str, Any]]:
    """The report of each rank of a job with these options."""
    status, out, err = run(*arguments, *WORKER, env=plain_environment(**environment))
    assert status == 0
    assert re.fullmatch(r"horovodrun: \d+ ranks? finished in \d+ s\n", err)
    lines = dict(line.split("<stdout>:", 1) for line in out.splitlines())
    return [json.loads(lines[f"[{rank}]"]) for rank in range(len(lines))]


def test_nothing_is_set_that_was_not_asked_for() -> None:
    (seen,) = told("-np", "1")
    assert not {setting.env for setting in SETTINGS} & set(seen["environment"])
    assert set(seen["new"]) <= set(seen["was"].values())


def test_options_of_every_kind_arrive_in_init() -> None:
    arguments = (
        *("-np", "2", "--fusion-threshold-mb", "32", "--cycle-time-ms", "0.5", "--no-stall-check"),
        *("--log-level", "ERROR", "--log-without-timestamp", "--start-timeout", "77"),
    )
    for seen in told(*arguments):
        assert seen["environment"]["HOROVOD_FUSION_THRESHOLD"] == "33554432"
        expected = Settings(
            fusion_threshold_bytes=32 * 1024 * 1024,
            cycle_time_ms=0.5,
            stall_check_disable=True,
            log_level="error",
            log_hide_time=True,
            start_timeout_s=77.0,
        )
        lists = {name: tuple(v) for name, v in seen["settings"].items() if isinstance(v, list)}
        assert Settings(**{**seen["settings"], **lists}) == expected


def test_an_option_wins_over_the_file_which_wins_over_the_environment(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(
        "params: {cache_capacity: 20, cycle_time_ms: 20}\nlogging: {level: null}\n"
    )
    (seen,) = told(
        *("-np", "1", "--config-file", f"{tmp_path}/settings.yaml", "--cache-capacity", "30"),
        HOROVOD_CACHE_CAPACITY="10",
        HOROVOD_CYCLE_TIME="10",
        HOROVOD_LOG_LEVEL="error",
        HOROVOD_STALL_CHECK_DISABLE="1",
    )
    settings = seen["settings"]
    assert (settings["cache_capacity"], settings["cycle_time_ms"]) == (30, 20.0)
    assert (settings["log_level"], settings["stall_check_disable"]) == ("error", True)


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores to tell one from all")
def test_the_threads_of_the_engine_stay_on_their_core_and_the_others_where_they_were() -> None:
    first, last = CORES[0], CORES[-1]
    ranks = told("-np", "2", "--thread-affinity", f"{last},{first}")
    for seen, core in zip(ranks, (last, first), strict=True):
        assert seen["new"]
        assert set(seen["new"]) == {str(core)}
        assert seen["old"] == seen["was"]
    for seen in told("-np", "2", "--thread-affinity", str(first)):
        assert set(seen["new"]) == {str(first)}


@pytest.mark.parametrize(
    ("cores", "text"),
    [
        ("65535", "SettingError: HOROVOD_THREAD_AFFINITY: core 65535 cannot be used here"),
        ("0,0", "SettingError: HOROVOD_THREAD_AFFINITY='0,0': local rank 2 has no core"),
    ],
)
def test_cores_that_are_not_there_end_the_job_in_init(cores: str, text: str) -> None:
    status, _, err = run("-np", "3", "--thread-affinity", cores, *WORKER)
    assert status == 1
    assert text in err


def test_a_wrong_file_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("params:\n  cycle_time_ms: fast\n")
    status, out, err = run(
        "-np", "1", "--config-file", f"{tmp_path}/settings.yaml", "echo", "never"
    )
    assert (status, out) == (2, "")
    assert "settings.yaml, line 2: params.cycle_time_ms=fast: expected a number" in err
    assert "Traceback" not in err


def test_a_deprecated_option_says_so_to_its_user() -> None:
    status, _, err = run("-np", "1", "--log-hide-timestamp", "true")
    assert status == 0
    text = "DeprecationWarning: --log-hide-timestamp is deprecated; use --log-without-timestamp"
    assert text in err
