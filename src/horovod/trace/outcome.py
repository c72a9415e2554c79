"""How the launcher saw a job end: a small file beside the job's recordings.

Recordings say what ranks did with each other; that a program then failed by itself is here alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from horovod.core.base.own_files import OwnFolder

__all__ = ["Outcome", "read_outcome", "write_outcome"]

_NAME = "outcome"
_MOST_BYTES = 1 << 20
_MOST_TEXT = 100_000


@dataclass(frozen=True)
class Outcome:
    """The exit status of ``horovodrun``, the reason in words, and when, since 1970."""

    status: int
    text: str
    epoch_s: float


def write_outcome(folder: OwnFolder, status: int, text: str) -> None:
    """Leave it in the job's folder, in place of that of an earlier one. Raises OSError."""
    # The status comes first: the engine reads no further, to know which jobs have failed.
    fields = {"status": status, "text": text[-_MOST_TEXT:]}
    folder.replace(_NAME, json.dumps(fields).encode())


def read_outcome(folder: OwnFolder) -> Outcome | None:
    """What was left there; None if nothing was, or nothing that can be read."""
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
