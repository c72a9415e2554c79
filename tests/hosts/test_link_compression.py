"""``HOROVOD_LINK_COMPRESSION`` for scripts that know nothing of it, fixed or tuned."""

from __future__ import annotations

import csv

import pytest
from lab import Lab

from horovod.launch.cli.config_file import read_config_file

# With these the format is all that autotuning can change.
FIXED = {
    "HOROVOD_FUSION_THRESHOLD": "1048576",
    "HOROVOD_CYCLE_TIME": "0",
    "HOROVOD_ALLREDUCE_BLOCK_KB": "512",
    "HOROVOD_SMALL_ALLREDUCE_BETWEEN_HOSTS_KB": "64",
}


@pytest.mark.parametrize("level", ["none", "int8", "fp8", "mxfp8", "int4"])
def test_the_setting_is_for_all_scripts(lab: Lab, level: str) -> None:
    setting = {"HOROVOD_LINK_COMPRESSION": level}
    job = lab.start_worker((2, 1), "set_compression.py", environment=setting)
    job.check(timeout_s=500)
    expected = {"is_exact": level == "none", "is_close": True, "others": True}
    assert lab.read_from(range(3), "report", job) == dict.fromkeys(range(3), expected)


def test_one_host_stays_exact(lab: Lab) -> None:
    setting = {"HOROVOD_LINK_COMPRESSION": "int8"}
    job = lab.start_worker((2,), "set_compression.py", environment=setting)
    job.check(timeout_s=500)
    for report in lab.read_from(range(2), "report", job).values():
        assert report == {"is_exact": True, "is_close": True, "others": True}


def test_ranks_with_other_settings_are_told(lab: Lab) -> None:
    own = {rank: {"HOROVOD_LINK_COMPRESSION": "int8"} for rank in (0,)}
    job = lab.start_worker((1, 1), "set_compression.py", of_rank=own)
    told = job.told() if any(job.wait(timeout_s=500)) else ""
    assert "Mismatched compression" in told
    assert "HOROVOD_LINK_COMPRESSION" in told


@pytest.mark.parametrize("allowed", ["", "int8"])
def test_autotune_takes_the_format_that_is_allowed_over_a_slow_link(lab: Lab, allowed: str) -> None:
    lab.open(2)
    for host in lab.hosts:
        host.limit_rate(30)
    log = lab.notes / "tuned.csv"
    autotune = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(log),
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "3",
        "HOROVOD_AUTOTUNE_LINK_COMPRESSION": allowed,
    }
    job = lab.start_worker((1, 2), "tuned_formats.py", str(log), environment=FIXED | autotune)
    job.check(timeout_s=500)
    reports = lab.read_from(range(3), "report", job)
    assert reports == dict.fromkeys(range(3), reports[0])  # all ranks have the same bits
    assert reports[0]["is_close"]
    rows = list(csv.DictReader(log.read_text().splitlines()))
    found = read_config_file(log.with_name("tuned.csv.yaml")).settings
    if not allowed:
        assert reports[0]["forms"] == ["exact"]
        assert {row["link_compression"] for row in rows} == {"none"}
        assert "link_compression" not in found
        return
    assert reports[0]["forms"][0] == "exact"
    assert reports[0]["forms"][-1] == "coded"
    assert {row["link_compression"] for row in rows} == {"none", "int8"}
    assert found["link_compression"] == rows[-1]["link_compression"] == "int8"


def test_ranks_that_allow_other_formats_are_told(lab: Lab) -> None:
    allowed = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LINK_COMPRESSION": "int8"}
    job = lab.start_worker((1, 1), "set_compression.py", of_rank={0: allowed})
    told = job.told() if any(job.wait(timeout_s=500)) else ""
    assert "rank 1 sent none, rank 0 sent tuned" in told or "rank 0 sent tuned, rank 1" in told
    assert "HOROVOD_AUTOTUNE_LINK_COMPRESSION" in told


def test_embeddings_and_norms_of_tensorflow_are_exact(lab: Lab) -> None:
    setting = {"HOROVOD_ENABLE_XLA_OPS": "1"}
    job = lab.start_worker((1, 1), "exact_layers_tf.py", environment=setting)
    job.check(timeout_s=500)
    expected = {"kernel": False, "embeddings": True, "gamma": True}
    for report in lab.read_from(range(2), "report", job).values():
        assert set(report) == {f"{m} {n}" for m in ("eager", "graph", "xla") for n in (None, 1)}
        assert all(found == expected for found in report.values()), report


@pytest.mark.parametrize("is_fed_back", [False, True])
def test_the_engine_adds_what_was_left_out_to_the_next_tensor(lab: Lab, is_fed_back: bool) -> None:
    setting = {"HOROVOD_LINK_COMPRESSION": "int4"}
    if is_fed_back:
        setting["HOROVOD_LINK_COMPRESSION_FEEDBACK"] = "1"
    job = lab.start_worker((2, 1), "fed_back.py", environment=setting)
    job.check(timeout_s=500)
    reports = lab.read_from(range(3), "report", job)
    for report in reports.values():
        assert report.pop("input is kept")
        assert report.pop("exact by name") < 0.001
        assert report.pop("running number") > 8  # no later tensor has its name
        assert all((error < 6) == is_fed_back for error in report.values()), report


def test_tensorflow_has_error_feedback_by_the_engine(lab: Lab) -> None:
    setting = {"HOROVOD_LINK_COMPRESSION_FEEDBACK": "1"}
    job = lab.start_worker((1, 1), "fed_back_tf.py", environment=setting)
    job.check(timeout_s=500)
    for report in lab.read_from(range(2), "report", job).values():
        assert set(report) == {"eager", "graph"}
        assert all(error < 6 for error in report.values()), report


def test_chances_are_the_same_from_run_to_run(lab: Lab) -> None:
    chance = {
        "HOROVOD_LINK_COMPRESSION": "int4",
        "HOROVOD_LINK_COMPRESSION_ROUNDING": "stochastic",
    }
    found = []
    for seed in ("1", "1", "2"):
        setting = {**chance, "HOROVOD_LINK_COMPRESSION_SEED": seed}
        job = lab.start_worker((2, 1), "by_chance.py", environment=setting)
        job.check(timeout_s=500)
        sums = lab.read_from(range(3), "report", job)
        assert sums == dict.fromkeys(range(3), sums[0])  # all ranks have the same bits
        found.append(sums[0])
    assert found[0] == found[1] != found[2]
    assert found[0][0] != found[0][1]  # each step has its own
