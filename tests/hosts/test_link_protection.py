"""Links between hosts under each protection: right results, and what a reader of packets sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from body_runs import run_bodies
from lab import Lab

HERE = Path(__file__).parent
WORDS = "these words are what the tensor holds; "


@pytest.mark.parametrize("level", ["integrity", "encrypted"])
def test_collectives_are_right(lab: Lab, level: str) -> None:
    protected = {"HOROVOD_LINK_PROTECTION": level}
    run_bodies(lab, (2, 1), HERE / "bodies", environment=protected)


@pytest.mark.parametrize(
    ("level", "is_readable"), [("control", True), ("integrity", True), ("encrypted", False)]
)
def test_what_can_be_read_on_the_wire(lab: Lab, level: str, is_readable: bool) -> None:
    host = lab.open(2).hosts[0]
    words = [sys.executable, str(HERE / "workers" / "eavesdropper.py"), WORDS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with host.start(words, **pipes) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        protected = {"HOROVOD_LINK_PROTECTION": level}
        job = lab.start_worker((1, 1), "secret_words.py", WORDS, environment=protected)
        job.check(timeout_s=500)
        heard, _ = listener.communicate(timeout=500)
    seen_bytes, found = map(int, heard.split())
    assert seen_bytes > 4_000_000  # the tensors passed this interface
    assert (found > 0) == is_readable


def test_ranks_must_agree_on_the_protection(lab: Lab) -> None:
    job = lab.start_worker(
        (1, 1), "secret_words.py", WORDS, of_rank={1: {"HOROVOD_LINK_PROTECTION": "encrypted"}}
    )
    assert all(job.wait(timeout_s=500))
    text = "HOROVOD_LINK_PROTECTION is encrypted on rank 1 and control on rank 0"
    assert all(text in rank.errors for rank in job.ranks), job.told()
