"""Flags, keys of configuration files and variables of the table mean here what they mean there."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import facts
import pytest
import yaml

from horovod.launch.cli import main as cli
from horovod.launch.model.job_plan import JobOutcome, JobPlan
from horovod.settings import SETTINGS, environment_of

LAUNCHER = facts.launcher()
MIGRATING = Path(__file__).parents[2] / "docs" / "migrating.md"


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What would run for the words of a command line."""
    plans: list[JobPlan] = []

    def run_job(job: JobPlan, _: object) -> JobOutcome:
        plans.append(job)
        return JobOutcome(0)

    monkeypatch.setattr(cli, "run_job", run_job)

    def make(*words: str) -> JobPlan:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            assert cli.main([*words, "python", "train.py"], {}) == 0
        return plans[-1]

    return make


@pytest.mark.parametrize(("words", "variables"), LAUNCHER["flags"].items())
def test_flag(words: str, variables: dict[str, str], plan: Any) -> None:
    job = plan("-np", "2", *words.split())
    assert job.extra_environment == variables
    assert job.command == ("python", "train.py")


@pytest.mark.parametrize(("key", "fact"), LAUNCHER["config_keys"].items())
def test_key_of_a_configuration_file(
    key: str, fact: dict[str, Any], plan: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section, name = key.split(".")
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({"controller": "gloo", section: {name: fact["value"]}}))
    job = plan("-np", "2", "--config-file", str(file))
    assert job.extra_environment == {fact["variable"]: fact["text"]}
    assert capsys.readouterr().err == ""


def test_options() -> None:
    known = cli.make_parser()._option_string_actions
    documented = " ".join(LAUNCHER["options"]).split()
    assert [option for option in documented if option not in known] == []


def test_defaults_of_variables() -> None:
    defaults = environment_of({setting.name: setting.default for setting in SETTINGS})
    assert {name: defaults.get(name) for name in LAUNCHER["variables"]} == LAUNCHER["variables"]


@pytest.mark.parametrize("name", LAUNCHER["answered"])
def test_what_differs_is_explained(name: str) -> None:
    assert f"`{name}" in MIGRATING.read_text()


def test_nothing_left_over_ends_a_job() -> None:
    script = (
        "import numpy, horovod.numpy as hvd; hvd.init(); "
        "print(hvd.allreduce(numpy.ones(1), op=hvd.Sum)); from horovod.core import world; "
        "print(world.settings().debug); import os; "
        f"print([name for name in {LAUNCHER['worker_variables']} if name not in os.environ])"
    )
    job = subprocess.run(
        [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable, "-c", script],
        env={**os.environ, **LAUNCHER["left_over"]},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert job.returncode == 0, job.stderr
    assert sorted(job.stdout.splitlines()) == [
        f"[{rank}]<stdout>:{line}" for rank in (0, 1) for line in ("False", "[2.]", "[]")
    ]
    for name in ("HOROVOD_GPU_OPERATIONS", "HOROVOD_GPU_ALLREDUCE", "HOROVOD_CPU_OPERATIONS"):
        assert job.stderr.count(f"{name}=") == 1
