"""``HOROVOD_LINK_COMPRESSION`` for scripts that know nothing of it, and ranks that disagree."""

from __future__ import annotations

import pytest
from lab import Lab


@pytest.mark.parametrize("level", ["none", "int8", "fp8", "int4"])
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


def test_embeddings_and_norms_of_tensorflow_are_exact(lab: Lab) -> None:
    setting = {"HOROVOD_ENABLE_XLA_OPS": "1"}
    job = lab.start_worker((1, 1), "exact_layers_tf.py", environment=setting)
    job.check(timeout_s=500)
    expected = {"kernel": False, "embeddings": True, "gamma": True}
    for report in lab.read_from(range(2), "report", job).values():
        assert set(report) == {f"{m} {n}" for m in ("eager", "graph", "xla") for n in (None, 1)}
        assert all(found == expected for found in report.values()), report


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
