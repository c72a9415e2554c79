"""The record of one process for a report, over all its worlds, in bounded memory.

It is sent as compressed JSON of at most 64 KiB, the limit of a store's value.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from horovod.errors import ErrorCode
from horovod.trace.recording import EventKind, Label
from horovod.trace.report.summary import LONG_NS, SIZE_CLASSES, Span, Summary

VERSION = 2
_MOST_BYTES = 4 * 1024 * 1024  # of JSON
_MOST_NAMES = 24
_MOST_LATE = 32
_MOST_SLACKS = 128
_MOST_EVENTS = 50
_MOST_WORLDS = 50
_MOST_TRIALS = 200
_MOST_LOGGED = 8  # names of the program's numbers
LARGEST = 1e300  # of them: sums of many are finite
_NS = 1e9

_HASHES = 2**32
# Sums over the time of a row.
COLUMNS = ("steps", "step_s", "bytes", "waiting_s", "blocked_s", "tensors", "buckets", "samples")

Labels = Callable[[int], "Label | None"]
_Numbers = TypeVar("_Numbers", int, NDArray[np.int64])


class World(NamedTuple):
    """The position of a process in a world; ``scope`` identifies worlds of a job."""

    scope: str
    rank: int
    size: int
    local_rank: int
    data_plane: str


@dataclass
class _Row:
    """The counts from ``begin_s`` to ``end_s``.

    ``logged`` has the sum and the number of the program's values, by name.
    """

    begin_s: float
    end_s: float
    values: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COLUMNS, 0.0))
    logged: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, values: Mapping[str, float]) -> None:
        """Add ``values`` to the counts."""
        for name, value in values.items():
            self.values[name] += value

    def log(self, name: str, total: float, count: int = 1) -> None:
        """Add values of the program."""
        known_total, known_count = self.logged.get(name, (0.0, 0))
        self.logged[name] = (known_total + total, known_count + count)


class History:
    """Counts over time in at most ``capacity`` rows; if there are more, two rows become one.

    Times are seconds of one clock.
    """

    def __init__(self, capacity: int = 240, resolution_s: float = 1.0) -> None:
        self.rows: list[_Row] = []
        self._capacity = capacity
        self._resolution_s = resolution_s

    def add(self, begin_s: float, end_s: float, values: Mapping[str, float]) -> None:
        """Add ``values`` of a time after all earlier ones."""
        last = self.rows[-1] if self.rows else None
        if last is None or end_s - last.begin_s > self._resolution_s or begin_s > last.end_s:
            if len(self.rows) >= self._capacity:
                self._halve()
            self.rows.append(_Row(begin_s, end_s))
        else:
            last.end_s = end_s
        self.rows[-1].add(values)

    def spread(self, name: str, begin_s: float, end_s: float) -> None:
        """Add the time from ``begin_s`` to ``end_s`` to a column of all rows that it overlaps."""
        for row in reversed(self.rows):
            if row.end_s <= begin_s:
                break
            row.values[name] += max(0.0, min(end_s, row.end_s) - max(begin_s, row.begin_s))

    def _halve(self) -> None:
        self._resolution_s *= 2
        halved = []
        for index in range(0, len(self.rows), 2):
            row = self.rows[index]
            if index + 1 < len(self.rows):
                row.end_s = self.rows[index + 1].end_s
                row.add(self.rows[index + 1].values)
                for name, (total, count) in self.rows[index + 1].logged.items():
                    row.log(name, total, count)
            halved.append(row)
        self.rows = halved


class ProcessRecord:
    """Times are seconds since 1970; ``process`` is a JSON object that identifies the process."""

    def __init__(self, process: Mapping[str, Any], capacity: int = 240) -> None:
        self._process = dict(process)
        self._about: dict[str, Any] = {}
        self._history = History(capacity)
        self._worlds: list[list[Any]] = []
        self._scopes: Counter[str] = Counter()
        self._world = ""
        self._by_tensors = np.zeros(SIZE_CLASSES, np.int64)
        self._by_bytes = np.zeros(SIZE_CLASSES, np.int64)
        self._seen_buckets = 0
        self._slow: dict[str, dict[str, Any]] = {}
        self._late: list[list[Any]] = []
        self._slacks: dict[tuple[str, int, int], int] = {}
        self._stride = 1
        self._events: list[list[Any]] = []
        self._trials: list[list[Any]] = []
        self._last_logged: dict[str, list[Any]] = {}
        self._pending_s = 0.0
        self._told_s = 0.0

    def describe(self, about: Mapping[str, Any]) -> None:
        """Update settings or versions."""
        self._about.update(about)

    def begin_world(self, now_s: float, world: World) -> None:
        """The process has joined another world."""
        self._scopes[world.scope] += 1
        self._world = f"{world.scope}{self._scopes[world.scope]}"
        self._worlds.append(
            [round(now_s, 3), self._world, world.rank, world.size, world.data_plane]
        )
        del self._worlds[:-_MOST_WORLDS]
        self._pending_s = 0.0

    def note(self, now_s: float, kind: str, text: str) -> None:
        """Add an event; the last ones are kept."""
        self._events.append([round(now_s, 3), kind, text[:400]])
        del self._events[:-_MOST_EVENTS]

    def note_trial(
        self, now_s: float, parameters: Mapping[str, Any], score: float, *, is_chosen: bool
    ) -> None:
        """Add parameters that autotuning has tried, or its result."""
        self._trials.append([round(now_s, 3), dict(parameters), score, is_chosen])
        del self._trials[:-_MOST_TRIALS]

    def count(self, begin_s: float, end_s: float, values: Mapping[str, float]) -> None:
        """Add the counts of ``COLUMNS`` for this time."""
        self._history.add(begin_s, end_s, values)
        self._told_s = end_s

    def log(self, at_s: float, values: Mapping[str, float], step: int | None) -> None:
        """Add numbers of the program to the time of the last ``count``; of many names the first."""
        for name, value in values.items():
            known = self._last_logged.get(name)
            if known is None and len(self._last_logged) >= _MOST_LOGGED:
                continue
            if abs(value) <= LARGEST:  # a nan is not
                self._history.rows[-1].log(name, value)
            elif known is None or abs(known[0]) <= LARGEST:
                at_step = "" if step is None else f" at step {step}"
                self.note(at_s, "value", f"{name} is {value}{at_step}")
            self._last_logged[name] = [value, step]

    def add(self, summary: Summary, taken_ns: int, epoch_offset_ns: int, labels: Labels) -> None:
        """Add the summary of the events in the time of the last ``count``, of ``taken_ns``."""
        scale = taken_ns / summary.covered_ns if summary.covered_ns else 0.0
        for row in self._history.rows[-1:]:
            row.values["waiting_s"] += summary.waiting_ns * max(scale, 1.0) / _NS
        for begin_ns, end_ns in summary.long_waits:
            begin_s, end_s = (begin_ns + epoch_offset_ns) / _NS, (end_ns + epoch_offset_ns) / _NS
            self._history.spread("waiting_s", begin_s, end_s)
        is_long = (
            summary.pending_ns
            and self._told_s * _NS - epoch_offset_ns - summary.pending_ns > LONG_NS
        )
        self._pending_s = (summary.pending_ns + epoch_offset_ns) / _NS if is_long else 0.0
        self._by_tensors += summary.by_tensors
        self._by_bytes += summary.by_bytes
        self._seen_buckets += int(summary.by_tensors.sum())
        self._add_slacks(summary)
        self._add_spans(summary, epoch_offset_ns, labels)
        for event in summary.notes:
            at_s = (int(event["time_ns"]) + epoch_offset_ns) / _NS
            self.note(at_s, *_text_of(event, labels))

    def _add_slacks(self, summary: Summary) -> None:
        """Keep a sample of buckets, which is the same on all ranks since the numbers are."""
        is_kept = _hash(summary.numbers) < _HASHES // self._stride
        columns = (summary.process_sets, summary.numbers, summary.slacks_ns)
        kept = [column[is_kept][-_MOST_SLACKS:].tolist() for column in columns]
        for process_set, number, slack_ns in zip(*kept, strict=True):
            self._slacks[self._world, process_set, number] = slack_ns // 1000
        while len(self._slacks) > _MOST_SLACKS:
            self._stride *= 2
            most = _HASHES // self._stride
            self._slacks = {key: us for key, us in self._slacks.items() if _hash(key[2]) < most}

    def _add_spans(self, summary: Summary, epoch_offset_ns: int, labels: Labels) -> None:
        for span in summary.slow:
            entry = self._entry(span, epoch_offset_ns, labels(span.label))
            known = self._slow.get(entry["name"])
            if known is None or entry["took_us"] > known["took_us"]:
                self._slow[entry["name"]] = entry
        if len(self._slow) > _MOST_NAMES:
            longest = sorted(self._slow.values(), key=lambda entry: -entry["took_us"])
            self._slow = {entry["name"]: entry for entry in longest[:_MOST_NAMES]}
        self._late += [self._late_entry(span) for span in summary.late]
        self._late = sorted(self._late, key=lambda entry: -entry[3])[:_MOST_LATE]

    def _entry(self, span: Span, epoch_offset_ns: int, label: Label | None) -> dict[str, Any]:
        return {
            "name": label.name if label else f"<forgotten {span.label}>",
            "kind": label.kind if label else -1,
            "dtype": label.dtype if label else -1,
            "shape": list(label.shape) if label else [],
            "tensors": label.tensors if label else 1,
            "bytes": span.size_bytes,
            "at_s": round((span.submitted_ns + epoch_offset_ns) / _NS, 3),
            "took_us": (span.done_ns - span.submitted_ns) // 1000,
            "queued_us": (span.started_ns - span.submitted_ns) // 1000,
            "held_us": span.held_ns // 1000,
            "waited_us": span.waited_ns // 1000,
            "waited_for": span.waited_for,
            "held_by": [self._world, span.process_set, span.held_by],
        }

    def _late_entry(self, span: Span) -> list[Any]:
        bucket = [self._world, span.process_set, span.bucket]
        return [bucket, span.slack_ns // 1000, span.was_last, span.gap_ns // 1000]

    def to_bytes(self) -> bytes:
        """The record for ``record_from_bytes``."""
        record = {
            "report": VERSION,
            "process": self._process,
            "about": self._about,
            "worlds": self._worlds,
            "rows": [
                [round(row.begin_s, 3), round(row.end_s, 3)]
                + [float(f"{row.values[name]:.6g}") for name in COLUMNS]
                for row in self._history.rows
            ],
            "logged": [
                {name: [float(f"{total:.6g}"), n] for name, (total, n) in row.logged.items()}
                for row in self._history.rows
            ],
            "last_logged": {
                name: [value if math.isfinite(value) else None, step]
                for name, (value, step) in self._last_logged.items()
            },
            "by_tensors": self._by_tensors.tolist(),
            "by_bytes": self._by_bytes.tolist(),
            "seen_buckets": self._seen_buckets,
            "slow": list(self._slow.values()),
            "late": self._late,
            "slacks": [[*key, slack_us] for key, slack_us in self._slacks.items()],
            "events": self._events,
            "trials": self._trials,
            "pending_s": round(self._pending_s, 3),
            "told_s": round(self._told_s, 3),
        }
        return zlib.compress(json.dumps(record, separators=(",", ":")).encode(), 1)


def _hash(number: _Numbers) -> _Numbers:
    """A hash below ``_HASHES``, which does not correlate with the buckets of a step."""
    return number * 2654435761 % _HASHES


def _text_of(event: np.void, labels: Labels) -> tuple[str, str]:
    """The kind and text of an event for a report."""
    kind, subject, value = int(event["kind"]), int(event["subject"]), int(event["value"])
    if kind == EventKind.ALARM:
        return "failure", f"rank {subject} was lost"
    if kind == EventKind.FAILED:
        return "failure", f"the world ended with an error: {_error(value)}"
    label = labels(subject)
    name = f"'{label.name}'" if label else "an operation"
    if kind == EventKind.STALL:
        return "stall", f"{name} had waited for other ranks for {value / _NS:.0f} s"
    return "failure", f"{name} failed: {_error(value)}"


def _error(code: int) -> str:
    try:
        return ErrorCode(code).name.lower().replace("_", " ")
    except ValueError:
        return f"error {code}"


def record_from_bytes(data: bytes) -> dict[str, Any]:
    """The inverse of ``ProcessRecord.to_bytes``.

    Raises:
        ValueError: it is not a record, or of another version.
    """
    try:
        unpacked = zlib.decompressobj()
        text = unpacked.decompress(data, _MOST_BYTES)
        record = json.loads(text) if unpacked.eof else None
    except (RecursionError, ValueError, zlib.error) as error:
        raise ValueError(f"no process record: {error}") from None
    if not isinstance(record, dict):
        raise ValueError("no process record: it is not whole")
    if record.get("report") != VERSION:
        raise ValueError("a process record of another version of horovod")
    return record
