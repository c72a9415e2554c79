"""A job with autotuning, and a job with its result."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from launching import run

from horovod.launch.cli.config_file import read_config_file

pytestmark = pytest.mark.usefixtures("no_child_is_left")
WORKERS = Path(__file__).with_name("workers")


def test_a_job_tunes_itself_and_the_next_begins_with_the_result(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    status, out, err = run(
        *("-np", "2", "--autotune", "--autotune-log-file", str(log)),
        *("--autotune-warmup-samples", "1", "--autotune-steps-per-sample", "2"),
        *("--autotune-bayes-opt-max-samples", "6", "--fusion-threshold-mb", "64"),
        *(sys.executable, str(WORKERS / "tuned.py"), str(log)),
    )
    assert status == 0, err
    assert out.count("tuned") == 2
    assert err.count("autotune: ") == 1
    rows = list(csv.DictReader(log.read_text().splitlines()))
    assert [row["phase"] for row in rows].count("search") == 6
    assert rows[-1]["phase"] == "result"
    assert {row["tensor_fusion_threshold"] for row in rows} == {str(64 * 1024 * 1024)}
    assert len({row["allreduce_block_kb"] + row["cycle_time_ms"] for row in rows}) > 1

    found = tmp_path / "log.csv.yaml"
    pinned = read_config_file(found).settings
    assert float(rows[-1]["cycle_time_ms"]) == pinned["cycle_time_ms"]
    assert "fusion_threshold_bytes" not in pinned
    arguments = ("-np", "1", "--config-file", str(found), sys.executable)
    status, out, err = run(*arguments, str(WORKERS / "settings_seen.py"))
    assert status == 0, err
    settings = json.loads(out.partition(":")[2])["settings"]
    assert {name: settings[name] for name in pinned} == pinned
    assert settings["autotune"] is False
