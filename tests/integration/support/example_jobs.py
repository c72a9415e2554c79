"""Runs the scripts of one folder of examples as their first lines say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 100
HOROVODRUN = Path(sys.executable).with_name("horovodrun")
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
            # Ranks share the cores; TensorFlow prints no advice.
            env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
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


def assert_served_without_horovod(*paths: Path) -> None:
    """Exported networks recognise digits in a process without Horovod."""
    script = ROOT / "examples" / "inference" / "serve.py"
    job = subprocess.run(
        [sys.executable, "-c", WITHOUT_HOROVOD, script, *paths],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"},
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
