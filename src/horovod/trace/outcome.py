"""How a job ended for the launcher: a small file beside the job's recordings.

Recordings have the communication of ranks; only this file has a failure of the program itself.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from horovod.core.base.own_files import OwnFolder

_NAME = "outcome"
_MOST_BYTES = 1 << 20
_MOST_TEXT = 100_000


@dataclass(frozen=True)
class Outcome:
    """The exit status of ``horovodrun``, the reason as text, and the time since 1970."""

    status: int
    text: str
    epoch_s: float


def write_outcome(folder: OwnFolder, status: int, text: str) -> None:
    """Write it to the job's folder, replacing that of an earlier job. Raises OSError."""
    # The status comes first: the engine reads only the beginning, to find failed jobs.
    fields = {"status": status, "text": text[-_MOST_TEXT:]}
    folder.replace(_NAME, json.dumps(fields).encode())


def read_outcome(folder: OwnFolder) -> Outcome | None:
    """The outcome in the folder; None if there is none that can be read."""
    found = folder.own_file(_NAME)
    if found is None:
        return None
    try:
        fields = json.loads(folder.read(_NAME, _MOST_BYTES))
        status, text = fields["status"], fields["text"]
    except (KeyError, OSError, RecursionError, TypeError, ValueError):
        return None
    if type(status) is not int or not isinstance(text, str):
        return None
    return Outcome(status, text, found.st_mtime)
