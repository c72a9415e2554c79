"""The elastic examples: a rank is killed, ranks join, a job continues from a checkpoint."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from example_jobs import HOROVODRUN, ROOT, Examples

for framework in ("keras", "tensorflow", "torch"):
    pytest.importorskip(framework)

EXAMPLES = Examples("elastic")
# The hosts are names of this machine, and a slot may be used again soon after a failure.
ELASTIC = ("--min-np", "1", "--blacklist-cooldown-range", "1", "1")


def test_help_tells_what_a_script_does_and_names_all_options() -> None:
    EXAMPLES.check_help()


def test_readme_names_every_example() -> None:
    EXAMPLES.check_readme()


class Job:
    """A running job and its output."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.printed = ""

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read until a line matches; the timeout of the test ends the wait."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.printed += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line matches {pattern!r}:\n{self.printed}")

    def kill_first(self, pids: re.Match[str]) -> None:
        os.kill(int(pids[1].split(",")[0]), signal.SIGKILL)

    def read_all(self) -> str:
        """The whole output at the end."""
        assert self.process.stdout
        self.printed += self.process.stdout.read()
        return self.printed

    def finish(self) -> str:
        """The same, for a job that succeeds."""
        printed = self.read_all()
        assert self.process.wait() == 0, printed
        return printed


@contextmanager
def started(script: str, launcher_options: tuple[object, ...], *options: object) -> Iterator[Job]:
    command = [HOROVODRUN, *launcher_options, sys.executable, ROOT / "examples/elastic" / script]
    with subprocess.Popen(
        [str(word) for word in (*command, *options)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Job(process)
        finally:
            process.terminate()


@pytest.mark.parametrize("script", ["tensorflow_digits.py", "keras_digits.py"])
def test_a_killed_rank_costs_some_steps(script: str) -> None:
    launcher = ("-np", 2, "--max-np", 2, *ELASTIC)
    quick = ("--epochs", 3, "--min-accuracy", 0, "--pause", 0.02)
    with started(script, launcher, *quick) as job:
        pids = job.wait_for(r"2 rank\(s\) go on in epoch 1 after 0 images; pids \[(.*)\]")
        job.wait_for("epoch  1/3")
        job.kill_first(pids)
        job.wait_for(r"1 rank\(s\) go on in epoch 2")
        assert "weights are bitwise equal on all" in job.finish()


def test_ranks_come_and_go_and_another_job_goes_on(tmp_path: Path) -> None:
    checkpoint, hosts = tmp_path / "digits.state", tmp_path / "hosts.txt"
    hosts.write_text("localhost:1\n")
    launcher = ("-np", 1, "--host-discovery-script", f"cat {hosts}", *ELASTIC)
    common = ("--checkpoint", checkpoint, "--min-accuracy", 0)
    with started("pytorch_digits.py", launcher, *common, "--epochs", 10**6) as job:
        job.wait_for("epoch  1/")
        replaced = hosts.with_suffix(".new")
        replaced.write_text("localhost:2\n")
        replaced.replace(hosts)  # a half-written file would be another answer
        pids = job.wait_for(r"2 rank\(s\) go on in epoch .* pids \[(.*)\]")
        job.wait_for(r"epoch .* 2 rank\(s\)")
        job.kill_first(pids)
        job.wait_for(r"1 rank\(s\) go on in epoch")
        job.wait_for(r"epoch .* 1 rank\(s\)")
        job.process.terminate()
        done = int(re.findall(r"epoch +(\d+)/", job.read_all())[-1])
    with started("pytorch_digits.py", ("-np", 2), *common, "--epochs", done + 2) as job:
        epoch = int(job.wait_for(r"2 rank\(s\) go on in epoch (\d+) after 0 images")[1])
        # Not every committed step was written: the job was ended, or ranks changed in between.
        assert 1 < epoch <= done + 1
        assert "weights are bitwise equal on all 2 rank(s)" in job.finish()
