"""Runs the scripts of one folder of examples as their first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 500
BATCH_TIMEOUT_S = 600
# Ranks share the cores; TensorFlow prints no advice.
QUIET = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
RUN_SCRIPTS = ROOT / "tests" / "support" / "run_scripts.py"
NEXT_PAGE = "next page"
# All scripts in one process, because frameworks take seconds to import.
ALL_HELP = f"""
import os, runpy, sys
for script in sys.argv[1:]:
    print({NEXT_PAGE!r})
    sys.argv, sys.path[0] = [script, "--help"], os.path.dirname(script)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        assert not end.code
"""
# Horovod is installed; this prevents its import.
WITHOUT_HOROVOD = """
import runpy, sys
sys.modules["horovod"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Examples:
    """The scripts of ``examples/folder``; ``modules`` are files that scripts import."""

    folder: str
    modules: tuple[str, ...] = ()

    @property
    def scripts(self) -> list[str]:
        paths = (ROOT / "examples" / self.folder).glob("*.py")
        return sorted(path.name for path in paths if path.name not in self.modules)

    def command(self, rank_count: int, script: str, *arguments: object) -> list[str]:
        path = ROOT / "examples" / self.folder / script
        words = (HOROVODRUN, "-np", rank_count, sys.executable, path, *arguments)
        return [str(word) for word in words]

    def run(
        self, rank_count: int, script: str, *arguments: object, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(rank_count, script, *arguments),
            cwd=ROOT,
            env={**os.environ, **QUIET, **environment},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def output_of(
        self, rank_count: int, script: str, *arguments: object, **environment: str
    ) -> str:
        """The output of the job, which must succeed."""
        job = self.run(rank_count, script, *arguments, **environment)
        assert job.returncode == 0, job.stdout + job.stderr
        return job.stdout

    def check_help(self) -> None:
        """Every script's ``--help`` describes the script and names all options."""
        paths = [ROOT / "examples" / self.folder / script for script in self.scripts]
        job = subprocess.run(
            [sys.executable, "-c", ALL_HELP, *map(str, paths)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert job.returncode == 0, job.stderr
        for path, page in zip(paths, job.stdout.split(NEXT_PAGE)[1:], strict=True):
            text = path.read_text()
            assert text.splitlines()[0].strip('"') in " ".join(page.split()), path
            for option in re.findall(r'add_argument\(\s*"(--[a-z0-9-]+)"', text):
                assert option in page, path

    def check_readme(self) -> None:
        """The list of examples names every script."""
        text = (ROOT / "examples" / "README.md").read_text()
        paths = [f"examples/{self.folder}/{script}" for script in self.scripts]
        assert [path for path in paths if path not in text] == []


@dataclass(frozen=True)
class Batch:
    """Commands that one job runs, one after the other, for several tests.

    A rank takes seconds to import a framework, and much less to run a small example.
    ``commands`` are a script below ``examples`` and its arguments, by names.
    """

    rank_count: int
    commands: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    def output_of(self, name: str) -> str:
        """What a command has printed, which must succeed."""
        status, output = self._results[name]
        assert status == 0, output + self._job.stderr
        return output

    def failure_of(self, name: str) -> str:
        """What a command has printed, which must fail, and all that is on stderr."""
        status, output = self._results[name]
        assert status != 0, output
        return output + self._job.stderr

    @cached_property
    def _results(self) -> dict[str, tuple[int, str]]:
        """For each command the highest status of a rank, and the output."""
        printed = self._job.stdout
        assert self._job.returncode == 0, printed + self._job.stderr
        statuses: dict[str, int] = {}
        for status, line in re.findall(r"<stdout>:status (\d+) of (.*)\n", printed):
            statuses[line] = max(statuses.get(line, 0), int(status))
        printed = re.sub(r"^\[[1-9]\d*\]<stdout>:status .*\n", "", printed, flags=re.MULTILINE)
        *outputs, _ = re.split(r"^\[0\]<stdout>:status .*\n", printed, flags=re.MULTILINE)
        results = [(statuses[line], out) for line, out in zip(self._lines, outputs, strict=True)]
        return dict(zip(self.commands, results, strict=True))

    @cached_property
    def _job(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [HOROVODRUN, "-np", str(self.rank_count), sys.executable, RUN_SCRIPTS, *self._lines],
            cwd=ROOT,
            env={**os.environ, **QUIET, **self.environment},
            capture_output=True,
            text=True,
            timeout=BATCH_TIMEOUT_S,
        )

    @property
    def _lines(self) -> list[str]:
        return [f"{ROOT / 'examples'}/{command}" for command in self.commands.values()]


def assert_served_without_horovod(*paths: Path) -> None:
    """Exported networks recognise digits in a process without Horovod."""
    script = ROOT / "examples" / "inference" / "serve.py"
    job = subprocess.run(
        [sys.executable, "-c", WITHOUT_HOROVOD, script, *paths],
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "KERAS_BACKEND": "tensorflow",
            # Where there is no Horovod, torch finds no backend of it.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert job.returncode == 0, job.stdout + job.stderr
    read = re.findall(r"^(\S+): test accuracy", job.stdout, re.MULTILINE)
    assert read == [path.name for path in paths]
    assert "Horovod is not loaded" in job.stdout


def printed_number(output: str, pattern: str) -> float:
    found = re.search(pattern, output)
    assert found, f"no match for {pattern!r} in:\n{output}"
    return float(found.group(1))


def assert_loss_falls(output: str) -> None:
    losses = [float(loss) for loss in re.findall(r"loss:? (\S+)", output)]
    assert len(losses) > 1
    assert losses[-1] < losses[0]
