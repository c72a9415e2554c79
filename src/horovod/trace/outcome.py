"""How the launcher saw a job end: a small file beside the job's recordings.

Recordings say what ranks did with each other; that a program then failed by itself is here alone.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Outcome", "read_outcome", "write_outcome"]

_NAME = "outcome"


@dataclass(frozen=True)
class Outcome:
    """The exit status of ``horovodrun``, the reason in words, and when, since 1970."""

    status: int
    text: str
    epoch_s: float


def write_outcome(folder: Path, status: int, text: str) -> None:
    """Leave it in the job's folder, in place of that of an earlier one. Raises OSError."""
    draft = folder / f"{_NAME}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump({"status": status, "text": text}, file)
    draft.replace(folder / _NAME)


def read_outcome(folder: Path) -> Outcome | None:
    """What was left there; None if nothing was, or nothing that can be read."""
    path = folder / _NAME
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return Outcome(int(fields["status"]), str(fields["text"]), path.stat().st_mtime)
    except (KeyError, OSError, TypeError, ValueError):
        return None
