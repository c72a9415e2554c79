"""Folders full of a user's files with the names of Horovod's files, and checks of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

NOBODY = 65534
_NAMES = (
    *("outcome", "data.part", "wanted", "model.running", "lock", "log", "state", "state.new"),
    *("rank-0-pid-1-world-1-end.hvdrec", "rank-0-pid-1-world-1.running", "socket", "thesis.txt"),
    *("stdout", "stderr", ".state.hvd.node-1.partial", "checkpoint.part", "timeline.json"),
)


def fill(folder: Path, outside: Path) -> None:
    """Make files in the folder and below, empty folders, FIFOs, and links that lead ``outside``."""
    outside.mkdir(parents=True, exist_ok=True)
    for place in (folder, folder / "rank.0", folder / "deep" / "thesis", outside):
        place.mkdir(parents=True, exist_ok=True)
        for name in _NAMES:
            (place / name).write_text(f"words of {name}")
    for number in range(20):
        inside = folder / f"work-{number}"
        inside.mkdir()
        (inside / "outcome").write_text("of an experiment")
        (inside / "rank-0-pid-1-world-1-error.hvdrec").write_text("of another program")
        (inside / "away").symlink_to(outside)
        (inside / "away.hvdrec").symlink_to(outside / "thesis.txt")
        os.mkfifo(inside / "queue.hvdrec")
        (folder / f"empty-{number}").mkdir()
        os.utime(inside, (1, 1))
    (folder / "link").symlink_to(outside)


def contents(folder: Path) -> dict[str, str]:
    """Everything in it, by path: its type, and the content of a file or a link."""
    found = {}
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *names)):
            mode = path.lstat().st_mode
            text = os.readlink(path) if stat.S_ISLNK(mode) else ""
            if stat.S_ISREG(mode):
                text = path.read_bytes().hex()
            found[str(path.relative_to(folder))] = f"{stat.S_IFMT(mode):o} {text}"
    return found


def lost(before: dict[str, str], folder: Path) -> list[str]:
    """Paths that are missing or have changed."""
    after = contents(folder)
    return [path for path, what in before.items() if after.get(path) != what]


def mark_job(folder: Path) -> Path:
    """Make the folder like ranks make a job's folder of recordings."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / f".horovod-recordings-of-{folder.name}").touch()
    return folder
