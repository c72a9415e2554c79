"""What the doctor finds."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Finding", "Severity"]


class Severity(enum.Enum):
    """How bad it is; the worst first."""

    PROBLEM = "problem"  # the job fails, hangs, or loses much time
    ADVICE = "advice"  # something would make it better
    NOTE = "note"  # good to know, or why nothing can be said


@dataclass(frozen=True)
class Finding:
    """One thing that was found; ``code`` names its kind for programs.

    ``text`` says what is, with numbers, ``advice`` what to do next. ``lines`` are shown as they
    are, such as a stack. ``evidence`` has the numbers for programs, durations in seconds.
    """

    severity: Severity
    code: str
    text: str
    advice: str = ""
    ranks: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
