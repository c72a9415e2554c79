"""The metrics of a job, read from rank 0 like Prometheus does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launching import run
from ports import free_port

pytestmark = pytest.mark.usefixtures("no_child_is_left")
WORKER = str(Path(__file__).with_name("workers") / "measured.py")


def test_rank_0_shows_all_ranks() -> None:
    status, out, err = run("-np", "2", "--metrics-port", str(free_port()), sys.executable, WORKER)
    assert status == 0, err
    lines = {line.partition(":")[2] for line in out.splitlines()}
    assert 'horovod_bytes_total{kind="allreduce",rank="0"} 400.0' in lines
    assert 'horovod_bytes_total{kind="allreduce",rank="1"} 400.0' in lines
    assert 'horovod_resets_total{rank="1"} 1.0' in lines


def test_an_address_that_others_reach_needs_a_token() -> None:
    arguments = ("--metrics-port", str(free_port()), "--metrics-address", "0.0.0.0")
    status, _, err = run("-np", "1", *arguments, sys.executable, WORKER)
    assert status == 1
    assert "so a token is needed: HOROVOD_METRICS_TOKEN" in err
