"""Where recordings are: a folder for each job, in one folder for all of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from horovod.core.base.own_files import OwnFolder

__all__ = [
    "JOB_ID",
    "default_folder",
    "folder_of",
    "is_marked",
    "job_name",
    "marker_of",
    "timeline_of_world",
]

JOB_ID = "HOROVOD_JOB_ID"
_NOWHERE = "off"


def default_folder() -> str:
    """Where recordings go if nobody says otherwise; a folder for this user alone."""
    import tempfile  # here, because launchers shall start at once and most have no use for it

    return os.path.join(tempfile.gettempdir(), f"horovod-{os.getuid()}")


def folder_of(recorder_dir: str) -> str:
    """The folder of all jobs with this ``HOROVOD_RECORDER_DIR``; empty for none."""
    return "" if recorder_dir.lower() == _NOWHERE else recorder_dir or default_folder()


def job_name(environ: Mapping[str, str], pid: int, hostname: str | None = None) -> str:
    """The folder of a job's recordings: the job's id, or else where its rank 0 is."""
    name = environ.get(JOB_ID) or f"{hostname or os.uname().nodename}-{pid}"
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:100] or "job"


def marker_of(job: str) -> str:
    """The name of the file that says that the folder ``job`` is one of recordings, and ours."""
    return f".horovod-recordings-of-{job}"  # the engine makes it: engine/trace/job_folder.cc


def is_marked(folder: OwnFolder) -> bool:
    """Whether ranks have made the folder, for a job of its name."""
    return folder.own_file(marker_of(folder.path.name)) is not None


def timeline_of_world(path: str, number: str) -> str:
    """The file of a world's timeline; that of a job's first world is ``path`` itself.

    Those of others have the world in their name: ``timeline.world2.json``. ``number`` is the key
    under which the world met: its scope in the job, if it has one, a slash, and how many of this
    scope it makes.
    """
    scope, _, generation = number.rpartition("/")
    word = scope.replace("/", "-") or "world"
    if generation != "1":
        word += f"-{generation}" if scope else generation
    if word in ("world", "world1"):
        return path
    base = Path(path)
    return str(base.with_name(f"{base.stem}.{word}{base.suffix}"))
