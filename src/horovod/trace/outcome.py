"""How a job ended for the launcher: a small file beside the job's recordings.

Recordings have the communication of ranks; only this file has a failure of the program itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from horovod.core.base.own_files import OwnFolder
from horovod.trace.failures import RankFailure
from horovod.trace.world_facts import text_field, whole_number

_NAME = "outcome"
_MOST_BYTES = 1 << 20
_MOST_TEXT = 100_000
_MOST_FAILURES = 64
_MOST_CODE = 1 << 31


@dataclass(frozen=True)
class Outcome:
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
        fields = json.loads(folder.read(_NAME, _MOST_BYTES))
        return Outcome(
            whole_number(fields, "status", least=-_MOST_CODE, most=_MOST_CODE),
            text_field(fields, "text"),
            found.st_mtime,
            tuple(map(_failure, fields.get("failures", [])[:_MOST_FAILURES])),
        )
    except (AttributeError, OSError, RecursionError, TypeError, ValueError):
        return None


def _failure(fields: Mapping[str, Any]) -> RankFailure:
    """Raises AttributeError, TypeError, ValueError."""
    return RankFailure(
        rank=whole_number(fields, "rank", most=_MOST_CODE),
        exit_code=whole_number(fields, "exit_code", least=-_MOST_CODE, most=_MOST_CODE),
        line=whole_number(fields, "line"),
        lines=tuple(str(line) for line in fields.get("lines", ())),
        **{name: text_field(fields, name) for name in ("kind", "message", "path")},
    )
