"""What a page of the tutorials tells its reader to write and to run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
_BLOCK = re.compile(
    r'^(?:<!-- exit status (\d+) -->\n)?```(\w+)(?: title="([^"]+)")?\n(.*?)^```',
    re.MULTILINE | re.DOTALL,
)
_TIMEOUT_S = 500


def write_files(page: Path, folder: Path) -> None:
    """Write the files of a page: the blocks with a title."""
    for _, _, name, text in _BLOCK.findall(page.read_text()):
        if name:
            (folder / name).write_text(text)


def follow(page: Path, folder: Path) -> None:
    """Write the files and run the commands of a page in its order; they must show what it shows."""
    for status, language, name, text in _BLOCK.findall(page.read_text()):
        if name:
            (folder / name).write_text(text)
        elif language == "console":
            for command, lines in _commands(text):
                _run(command, lines, int(status or 0), folder)


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command and the lines that the page shows below it."""
    for part in text.split("$ ")[1:]:
        command, *lines = part.splitlines()
        yield command, lines


def _run(command: str, lines: list[str], status: int, folder: Path) -> None:
    job = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOROVOD_RECORDER_DIR": str(folder / "recordings"),
            "OMP_NUM_THREADS": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert job.returncode == status, f"{command}\n{job.stdout}"
    for line in lines:
        pattern = re.escape(line).replace(r"\.\.\.", ".*")
        assert re.search(f"^{pattern}$", job.stdout, re.MULTILINE), f"{line}\n{job.stdout}"
