"""What the doctor finds, and helpers for the texts."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from horovod.core.base.ranks import ranks_text
from horovod.core.operations import Dtype, Kind
from horovod.trace.recording import Label, Recording
from horovod.trace.report.number_texts import seconds_text
from horovod.trace.stacks import main_thread, own_call

_MOST_NAMES = 4
_MOST_CALLS = 8


class Severity(enum.Enum):
    """The severity of a finding; the worst first."""

    PROBLEM = "problem"  # the job fails, hangs, or loses much time
    ADVICE = "advice"  # a change would make the job better
    NOTE = "note"  # information, or why something is not known


@dataclass(frozen=True)
class Finding:
    """One finding; ``code`` names its kind for programs.

    ``text`` is the fact with its numbers, ``advice`` the next step. ``lines``, such as a stack, are
    shown unchanged. ``evidence`` has the numbers for programs, durations in seconds.
    """

    severity: Severity
    code: str
    text: str
    advice: str = ""
    ranks: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)


problem = partial(Finding, Severity.PROBLEM)
note = partial(Finding, Severity.NOTE)


def duration_text(duration_ns: float) -> str:
    """``1.9 ms``, ``12.3 s``."""
    return seconds_text(duration_ns / 1e9)


def named_ranks(ranks: Sequence[int], names: Sequence[str]) -> str:
    """``rank 1 (pid 7 on node-1)``, ``rank 1 (...) and rank 2 (...)``, ``ranks 4-8``."""
    if len(ranks) > _MOST_NAMES:
        return ranks_text(ranks)
    texts = [names[rank] if rank < len(names) else f"rank {rank}" for rank in ranks]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def capital(text: str) -> str:
    """``text`` with a capital letter."""
    return text[:1].upper() + text[1:]


def title(label: Label) -> str:
    """``allreduce 'x'``, or ``all_reduce number 17 of group default``."""
    if label.title_in_group:
        return label.name
    is_known = label.kind in set(Kind)
    operation = Kind(label.kind).name.lower() if is_known else "operation"
    if label.tensors > 1:
        operation = f"grouped_{operation}"
    name = label.name.removeprefix(f"{operation}.")
    of_set = f" of process set {label.process_set}" if label.process_set else ""
    return f"{operation} '{name}'{of_set}"


def shaped_title(label: Label) -> str:
    """``allreduce of shape [3, 4], float32``; of a group its first tensor's shape."""
    dtype = Dtype(label.dtype).name.lower() if label.dtype in set(Dtype) else "?"
    operation = title(label).partition(" ")[0]
    return f"{operation} of shape {list(label.shape)}, {dtype}"


def stack_lines(recording: Recording) -> tuple[str, ...]:
    """The main thread's calls from the program's innermost one outwards, if they are recorded."""
    calls = main_thread(recording.stacks)
    own = own_call(calls)
    first = 0 if own is None else calls.index(own)
    calls = calls[first : first + _MOST_CALLS]
    return tuple(f'File "{call.path}", line {call.line}, in {call.function}' for call in calls)


def where_text(recording: Recording) -> str:
    """The program's position: ``train.py line 41 (validate)``; empty if it is not known."""
    call = own_call(main_thread(recording.stacks))
    return "" if call is None else f"{call.path} line {call.line} ({call.function})"
