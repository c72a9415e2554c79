"""The flight recorder for programs: write a file, begin or end a timeline."""

from __future__ import annotations

import os

from horovod.core import world
from horovod.errors import HorovodInternalError
from horovod.trace.folders import engine_path


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begin a timeline, or go on in another file; rank 0 writes, and shows all ranks.

    Every rank should call it. Where the file cannot be written, rank 0 logs an error and the
    program goes on.

    Args:
        file_path: where rank 0 writes; what is there is lost.
        mark_cycles: mark the beginning of each bucket, too.

    Raises:
        ValueError: before ``init``, ``HOROVOD_TIMELINE`` was not set when ``init`` was called, or
            the path is not in UTF-8.
    """
    if not world.settings().timeline:
        raise ValueError(
            "start_timeline: set HOROVOD_TIMELINE=DYNAMIC before init, or no timeline can be begun"
        )
    world.engine().start_timeline(engine_path(file_path), mark_cycles)


def stop_timeline() -> None:
    """End the timeline, if there is one: afterwards its file is complete.

    Raises:
        ValueError: before ``init``.
    """
    world.engine().stop_timeline()


def dump_recorder(file_path: str | os.PathLike[str] | None = None) -> str:
    """Write the last events of this rank's flight recorder to a file.

    Each rank writes its own; nothing is communicated. ``horovod.trace.recording`` reads it.

    Args:
        file_path: the file; without one it is in ``HOROVOD_RECORDER_DIR``, in the job's folder.

    Returns:
        The path of the file.

    Raises:
        ValueError: before ``init``, without a recorder (``HOROVOD_RECORDER_EVENTS=0``), without a
            path where ``HOROVOD_RECORDER_DIR=off``, or with one that is not in UTF-8.
        OSError: the file cannot be written.
    """
    path = "" if file_path is None else engine_path(file_path)
    try:
        return world.engine().write_recording("call", "", path)
    except HorovodInternalError as error:
        raise OSError(f"dump_recorder: {error}") from error
