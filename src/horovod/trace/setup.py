"""What the flight recorder of a world is told at its start."""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from horovod import _native
from horovod.settings import SETTINGS, Settings
from horovod.trace.stacks import prepare_stacks

__all__ = ["DYNAMIC", "configure_trace", "default_folder", "job_name"]

DYNAMIC = "DYNAMIC"  # as the name of a timeline: begun by the program
_NOWHERE = "off"  # as a folder for recordings
_MIB = 1024 * 1024


def default_folder() -> str:
    """Where recordings go if nobody says otherwise; a folder for this user alone."""
    return os.path.join(tempfile.gettempdir(), f"horovod-{os.getuid()}")


def job_name(environ: Mapping[str, str], pid: int, hostname: str | None = None) -> str:
    """The folder of a job's recordings: the job's name, or else where its rank 0 is."""
    name = environ.get("HOROVOD_JOB_ID") or f"{hostname or platform.node()}-{pid}"
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".")[:100] or "job"


def configure_trace(config: _native.Config, settings: Settings, job: str, data_plane: str) -> None:
    """Fill in ``config.trace``; its ranks' names must be there already."""
    trace = config.trace
    timeline = settings.timeline
    trace.events = settings.recorder_events
    if timeline and not trace.events:
        trace.events = Settings().recorder_events  # what it is made of
    trace.is_chosen_folder = bool(settings.recorder_dir)
    trace.folder = settings.recorder_dir or default_folder()
    if settings.recorder_dir.lower() == _NOWHERE:
        trace.folder = ""
    trace.job = job
    trace.world = json.dumps(_description(config, settings, job, data_plane))
    trace.timeline_path = "" if timeline == DYNAMIC else timeline
    trace.timeline_mark_cycles = settings.timeline_mark_cycles
    trace.timeline_max_bytes = settings.timeline_max_mb * _MIB
    trace.data_plane = data_plane
    if trace.events:
        trace.stack_signal, trace.stack_fd = prepare_stacks()


def _description(
    config: _native.Config, settings: Settings, job: str, data_plane: str
) -> dict[str, object]:
    """What every recording says about its world, as JSON."""
    defaults = Settings()
    changed = {
        setting.env: setting.text(getattr(settings, setting.name))
        for setting in SETTINGS
        if getattr(settings, setting.name) != getattr(defaults, setting.name)
    }
    return {
        "job": job,
        "size": config.size,
        "generation": config.generation,
        "ranks": config.peer_names,
        "data_plane": data_plane,
        "settings": changed,
        "horovod": _version(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def _version() -> str:
    try:
        return version("horovod")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"
