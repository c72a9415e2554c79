"""Arguments that executors refuse without a cluster."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from horovod.ray import ElasticRayExecutor, RayExecutor

SETTINGS = RayExecutor.create_settings()


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({}, ValueError, "expected num_workers, or num_hosts"),
        ({"num_workers": 2, "num_hosts": 1}, AssertionError, "not both"),
        ({"num_workers": 0}, ValueError, "num_workers=0"),
        ({"max_workers": 2}, ValueError, "max_workers=2 needs min_workers"),
        (
            {"min_workers": 1, "num_workers": 2},
            ValueError,
            "Both `min_workers` and `num_workers` provided.",
        ),
        ({"min_workers": 3, "max_workers": 2}, ValueError, "max_workers=2: expected at least 3"),
        ({"min_workers": 0}, ValueError, "min_workers=0"),
        ({"min_workers": 1, "reset_limit": -1}, ValueError, "reset limit is -1"),
        ({"num_workers": 1, "gpus_per_worker": 1}, ValueError, "needs use_gpu"),
        (
            {"num_workers": 1, "gpus_per_worker": 0, "use_gpu": True},
            ValueError,
            "expected at least 1",
        ),
        ({"min_workers": 1, "override_discovery": False}, ValueError, "settings.discovery"),
    ],
)
def test_numbers_that_contradict_each_other(
    given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        RayExecutor(SETTINGS, **given)


def test_before_start_there_is_nothing_to_run_on() -> None:
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        RayExecutor(SETTINGS, num_workers=1).run(print)


def test_methods_that_an_elastic_job_does_not_have() -> None:
    executor = RayExecutor(SETTINGS, min_workers=1)
    executor.start()
    with pytest.raises(NotImplementedError, match="run_remote"):
        executor.run_remote(print)
    with pytest.raises(NotImplementedError, match="execute_single"):
        executor.execute_single(print)


def test_the_older_names_are_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="use min_num_proc"):
        settings = ElasticRayExecutor.create_settings(min_np=2)
    assert settings.min_num_proc == 2
    with (
        pytest.warns(DeprecationWarning, match="use RayExecutor with min_workers"),
        pytest.raises(ValueError, match="gpus_per_slot=1 needs use_gpu"),
    ):
        ElasticRayExecutor(settings, gpus_per_slot=1)


def test_a_key_is_written_once_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for text in ("first", "second"):
        RayExecutor.create_settings(ssh_identity_file=str(file), ssh_str=text)
    assert file.read_text() == "first"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
