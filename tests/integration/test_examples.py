"""The examples run under horovodrun as their first lines say, and print what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
DIGITS = ROOT / "examples" / "pytorch" / "digits.py"
QUICK = ("--epochs", "2", "--min-accuracy", "0")


def run_digits(rank_count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [HOROVODRUN, "-np", str(rank_count), sys.executable, DIGITS, *arguments]
    return subprocess.run(
        [str(word) for word in command], cwd=ROOT, capture_output=True, text=True, timeout=100
    )


def printed_number(output: str, pattern: str) -> float:
    found = re.search(pattern, output)
    assert found, f"no match for {pattern!r} in:\n{output}"
    return float(found.group(1))


@pytest.mark.parametrize("rank_count", [1, 2, 4])
def test_digits_prints_progress_on_rank_0_only(rank_count: int) -> None:
    job = run_digits(rank_count, *QUICK)
    assert job.returncode == 0, job.stderr
    assert f"training on {rank_count} rank(s), 1347 images, 450 held back" in job.stdout
    assert f"weights are bitwise equal on all {rank_count} rank(s)" in job.stdout
    first, second = (printed_number(job.stdout, rf"epoch +{e}/2  loss (\S+)") for e in (1, 2))
    assert second < first
    assert printed_number(job.stdout, r"\((\d+) samples/s") > 0
    assert {line[:11] for line in job.stdout.splitlines()} == {"[0]<stdout>"}


def test_digits_reaches_its_accuracy() -> None:
    job = run_digits(2)
    assert job.returncode == 0, job.stdout + job.stderr
    assert printed_number(job.stdout, r"test accuracy (\S+)") >= 0.97
    assert "weights are bitwise equal on all 2 rank(s)" in job.stdout


def test_digits_fails_below_the_demanded_accuracy() -> None:
    job = run_digits(1, "--epochs", "1", "--min-accuracy", "1.01")
    assert job.returncode != 0
    assert "accuracy is below 1.01" in job.stdout
