"""Experiments on several hosts: this machine under several names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml
from fake_hosts import FakeHosts
from launching import run

pytestmark = pytest.mark.usefixtures("no_child_is_left")


def experiment(
    fake: FakeHosts, lines: object, hosts: str, *options: str, gpus: int = 0, **fields: object
) -> tuple[int, str, str]:
    workers = fields.pop("workers", {"count": 2, "processes": 2})
    tensorflow = {"horovod": {"workers": workers}}
    train = {"framework": "tensorflow", "tensorflow": tensorflow, "resources": {"gpus": gpus}}
    content = {"project": "demo", "train": {**train, "run": lines, **fields}}
    folder = fake.folder.parent
    (folder / "riseml.yml").write_text(yaml.safe_dump(content))
    path = f"{fake.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}"
    environ = {**fake.environ, "CUDA_VISIBLE_DEVICES": "4,5,6,7", "PATH": path}
    return run("-f", "riseml.yml", "-H", hosts, *options, cwd=folder, env=environ)


PLACES = (
    'echo "${FAKE_HOST:-here} $HOROVOD_RANK/$HOROVOD_SIZE $CUDA_VISIBLE_DEVICES $EXPERIMENT_ID"'
)


def test_a_worker_is_on_one_host_and_lines_follow_each_other_on_all(fake: FakeHosts) -> None:
    second = "test $(ls $OUTPUT_DIR | wc -l) = 5 && echo second"  # the copy of the file exists
    lines = [f"{PLACES}; : > $OUTPUT_DIR/$HOROVOD_RANK", second]
    status, out, err = experiment(fake, lines, "localhost:3,host-a:2", gpus=2)
    assert status == 0, err
    # On this machine the visible GPUs count; on others there is one for each slot.
    assert sorted(line for line in out.splitlines() if "second" not in line) == [
        "[1][0]<stdout>:here 0/4 4,5 1",
        "[1][1]<stdout>:here 1/4 4,5 1",
        "[1][2]<stdout>:host-a 2/4 0,1 1",
        "[1][3]<stdout>:host-a 3/4 0,1 1",
    ]
    assert out.count("second") == 4


def test_experiments_that_run_together_are_on_different_slots(fake: FakeHosts) -> None:
    status, out, err = experiment(
        fake, PLACES, "host-a:4,host-b:2", workers=2, parameters={"n": [1, 2, 3]}, concurrency=3
    )
    assert status == 0, err
    assert "3 at a time" in err
    found = {line.split(":", 1)[1].split()[0] + line.split()[-1] for line in out.splitlines()}
    assert found == {"host-a1.1", "host-a1.2", "host-b1.3"}


def test_a_dry_run_shows_the_hosts_and_contacts_none(fake: FakeHosts) -> None:
    status, out, err = experiment(
        fake, "echo never", "localhost:2,host-a:5", "--dry-run", workers=6, concurrency=1
    )
    assert status == 0, err
    assert "localhost:2, host-a:4" in out
    assert not (fake.folder / "asked").exists()


def test_without_room_the_reason_is_said(fake: FakeHosts) -> None:
    status, out, err = experiment(fake, "echo never", "host-a:3,host-b:1")
    assert (status, out) == (2, "")
    assert "no room for them on host-a:3, host-b:1: each of 2 workers has 2 processes" in err


def test_a_host_that_cannot_be_reached_fails_the_experiment(fake: FakeHosts) -> None:
    fake.first("host-b", "echo no way in >&2; exit 255")
    status, out, err = experiment(
        fake, "echo went", "host-a:2,host-b:2", workers=2, parameters={"n": [1, 2]}, concurrency=2
    )
    assert status == 1
    assert {line[:5] for line in out.splitlines()} == {"[1.1]"}
    assert "1.2 n=2 --> Failed" in err
    assert "no way in" in err
