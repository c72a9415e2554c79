"""The folders of recordings: one for each job, all in one folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from horovod.core.base.own_files import OwnFolder
from horovod.errors import SettingError

JOB_ID = "HOROVOD_JOB_ID"
_NOWHERE = "off"


def default_folder() -> str:
    """The default folder of recordings, which only this user can read.

    Empty if there is no folder for temporary files, as in a container that is read-only.
    """
    import tempfile  # here, to start launchers faster

    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:
        return ""
    return os.path.join(folder, f"horovod-{os.getuid()}")


def folder_of(recorder_dir: str) -> str:
    """The folder of all jobs for a value of ``HOROVOD_RECORDER_DIR``; empty for none."""
    return "" if recorder_dir.lower() == _NOWHERE else recorder_dir or default_folder()


def engine_path(path: str | os.PathLike[str]) -> str:
    """``path`` for the engine, which takes text as UTF-8, whatever the locale's encoding is.

    Raises:
        SettingError: the file system's bytes of it are not UTF-8.
    """
    try:
        return os.fsencode(path).decode()
    except UnicodeDecodeError:
        raise SettingError(
            f"{os.fspath(path)!r}: recordings and timelines need a path in UTF-8"
        ) from None


def job_name(environ: Mapping[str, str], pid: int, hostname: str | None = None) -> str:
    """The name of a job's folder: the job's id, or else host and process of its rank 0."""
    name = environ.get(JOB_ID) or f"{hostname or os.uname().nodename}-{pid}"
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:100] or "job"


def marker_of(job: str) -> str:
    """The name of the file that marks ``job`` as a folder of recordings of this user."""
    return f".horovod-recordings-of-{job}"  # written by engine/trace/job_folder.cc


def is_marked(folder: OwnFolder) -> bool:
    """Whether ranks have made the folder for the job of its name."""
    return folder.own_file(marker_of(folder.path.name)) is not None


def timeline_of_world(path: str, number: str) -> str:
    """The file of a world's timeline: ``path`` for the first world of a job.

    Other worlds are in the name: ``timeline.world2.json``. ``number`` is the key of the world's
    rendezvous: its scope, if it has one, a slash, and its number in the scope.
    """
    scope, _, generation = number.rpartition("/")
    word = scope.replace("/", "-") or "world"
    if generation != "1":
        word += f"-{generation}" if scope else generation
    if word in ("world", "world1"):
        return path
    base = Path(path)
    return str(base.with_name(f"{base.stem}.{word}{base.suffix}"))
