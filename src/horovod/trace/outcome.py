"""How a job ended for the launcher: a small file beside the job's recordings.

Recordings have the communication of ranks; only this file has a failure of the program itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

from horovod.core.base.checked import BadMessageError, Fields
from horovod.core.base.own_files import OwnFolder
from horovod.trace.failures import RankFailure

_NAME = "outcome"
_MOST_BYTES = 1 << 20
_MOST_TEXT = 100_000
_MOST_FAILURES = 64
_MOST_CODE = 1 << 31


class Outcome(NamedTuple):
    """The exit status of ``horovodrun``, the reason as text, and the time since 1970.

    ``failures`` are the ranks that failed, the cause of the end first.
    """

    status: int
    text: str
    epoch_s: float
    failures: tuple[RankFailure, ...] = ()


def write_outcome(
    folder: OwnFolder, status: int, text: str, failures: Sequence[RankFailure] = ()
) -> None:
    """Write it to the job's folder, replacing that of an earlier job. Raises OSError."""
    # The status comes first: the engine reads only the beginning, to find failed jobs.
    fields = {"status": status, "text": text[-_MOST_TEXT:], "failures": [*map(asdict, failures)]}
    folder.replace(_NAME, json.dumps(fields).encode())


def read_outcome(folder: OwnFolder) -> Outcome | None:
    """The outcome in the folder; None if there is none that can be read."""
    found = folder.own_file(_NAME)
    if found is None:
        return None
    try:
        fields = Fields.read("outcome", folder.read(_NAME, _MOST_BYTES))
        failures = fields.each("failures", _failure) if "failures" in fields.names else []
        return Outcome(
            fields.integer("status", -_MOST_CODE, _MOST_CODE),
            fields.text("text", _MOST_TEXT),
            found.st_mtime,
            tuple(failures[:_MOST_FAILURES]),
        )
    except (OSError, BadMessageError):
        return None


def _failure(fields: Fields) -> RankFailure:
    return RankFailure(
        rank=fields.integer("rank", 0, _MOST_CODE),
        exit_code=fields.integer("exit_code", -_MOST_CODE, _MOST_CODE),
        line=fields.integer("line"),
        lines=fields.texts("lines"),
        **{name: fields.text(name) for name in ("kind", "message", "path")},
    )
