"""All that a report needs of one process, over all its worlds, in bounded memory.

It travels as JSON, compressed, and is 64 KiB at most, which is what a store takes.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from horovod.errors import ErrorCode
from horovod.trace.recording import EventKind, Label
from horovod.trace.report.history import COLUMNS, History
from horovod.trace.report.summary import LONG_NS, SIZE_CLASSES, Span, Summary

__all__ = ["VERSION", "ProcessRecord", "World", "decoded"]

VERSION = 1
_MOST_BYTES = 4 * 1024 * 1024  # of JSON
_MOST_NAMES = 24
_MOST_LATE = 32
_MOST_SLACKS = 128
_MOST_EVENTS = 50
_MOST_WORLDS = 50
_MOST_TRIALS = 200
_NS = 1e9

_LOTS = 2**32

Labels = Callable[[int], "Label | None"]
_Numbers = TypeVar("_Numbers", int, NDArray[np.int64])


@dataclass(frozen=True)
class World:
    """A place in a world; ``scope`` tells worlds of a job apart."""

    scope: str
    rank: int
    size: int
    local_rank: int
    data_plane: str


class ProcessRecord:
    """Times are seconds since 1970; ``who`` and ``about`` are JSON objects."""

    def __init__(self, who: Mapping[str, Any], capacity: int = 240) -> None:
        self._who = dict(who)
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
        self._pending_s = 0.0
        self._told_s = 0.0

    def describe(self, about: Mapping[str, Any]) -> None:
        """Settings and versions, as they are now."""
        self._about.update(about)

    def begin_world(self, now_s: float, world: World) -> None:
        """The process has joined another one."""
        self._scopes[world.scope] += 1
        self._world = f"{world.scope}{self._scopes[world.scope]}"
        self._worlds.append(
            [round(now_s, 3), self._world, world.rank, world.size, world.data_plane]
        )
        del self._worlds[:-_MOST_WORLDS]
        self._pending_s = 0.0

    def note(self, now_s: float, kind: str, text: str) -> None:
        """Something happened; the last ones are kept."""
        self._events.append([round(now_s, 3), kind, text[:400]])
        del self._events[:-_MOST_EVENTS]

    def note_trial(
        self, now_s: float, parameters: Mapping[str, Any], score: float, *, is_chosen: bool
    ) -> None:
        """A choice of parameters was tried, or chosen for good."""
        self._trials.append([round(now_s, 3), dict(parameters), score, is_chosen])
        del self._trials[:-_MOST_TRIALS]

    def count(self, begin_s: float, end_s: float, values: Mapping[str, float]) -> None:
        """What was counted in this time, of ``COLUMNS``."""
        self._history.add(begin_s, end_s, values)
        self._told_s = end_s

    def take(self, digest: Summary, taken_ns: int, epoch_offset_ns: int, labels: Labels) -> None:
        """What the events of the time that was counted last say; ``taken_ns`` of it."""
        scale = taken_ns / digest.covered_ns if digest.covered_ns else 0.0
        for row in self._history.rows[-1:]:
            row.values["waiting_s"] += digest.waiting_ns * max(scale, 1.0) / _NS
        for begin_ns, end_ns in digest.long_waits:
            begin_s, end_s = (begin_ns + epoch_offset_ns) / _NS, (end_ns + epoch_offset_ns) / _NS
            self._history.spread("waiting_s", begin_s, end_s)
        is_long = (
            digest.pending_ns and self._told_s * _NS - epoch_offset_ns - digest.pending_ns > LONG_NS
        )
        self._pending_s = (digest.pending_ns + epoch_offset_ns) / _NS if is_long else 0.0
        self._by_tensors += digest.by_tensors
        self._by_bytes += digest.by_bytes
        self._seen_buckets += int(digest.by_tensors.sum())
        self._take_slacks(digest)
        self._take_spans(digest, epoch_offset_ns, labels)
        for event in digest.notes:
            at_s = (int(event["time_ns"]) + epoch_offset_ns) / _NS
            self.note(at_s, *_told(event, labels))

    def _take_slacks(self, digest: Summary) -> None:
        """Of every so many buckets one, the same ones on all ranks: their numbers are alike."""
        is_kept = _lot(digest.numbers) < _LOTS // self._stride
        for process_set, number, slack_ns in zip(
            digest.process_sets[is_kept][-_MOST_SLACKS:].tolist(),
            digest.numbers[is_kept][-_MOST_SLACKS:].tolist(),
            digest.slacks_ns[is_kept][-_MOST_SLACKS:].tolist(),
            strict=True,
        ):
            self._slacks[self._world, process_set, number] = slack_ns // 1000
        while len(self._slacks) > _MOST_SLACKS:
            self._stride *= 2
            most = _LOTS // self._stride
            self._slacks = {key: us for key, us in self._slacks.items() if _lot(key[2]) < most}

    def _take_spans(self, digest: Summary, epoch_offset_ns: int, labels: Labels) -> None:
        for span in digest.slow:
            entry = self._entry(span, epoch_offset_ns, labels(span.label))
            known = self._slow.get(entry["name"])
            if known is None or entry["took_us"] > known["took_us"]:
                self._slow[entry["name"]] = entry
        if len(self._slow) > _MOST_NAMES:
            longest = sorted(self._slow.values(), key=lambda entry: -entry["took_us"])
            self._slow = {entry["name"]: entry for entry in longest[:_MOST_NAMES]}
        self._late += [self._late_entry(span) for span in digest.late]
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

    def encoded(self) -> bytes:
        """As it travels."""
        record = {
            "report": VERSION,
            "who": self._who,
            "about": self._about,
            "worlds": self._worlds,
            "rows": [
                [round(row.begin_s, 3), round(row.end_s, 3)]
                + [float(f"{row.values[name]:.6g}") for name in COLUMNS]
                for row in self._history.rows
            ],
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


def _lot(number: _Numbers) -> _Numbers:
    """A number of ``_LOTS`` that has nothing to do with how many buckets a step has."""
    return number * 2654435761 % _LOTS


def _told(event: np.void, labels: Labels) -> tuple[str, str]:
    """Kind and text of what is worth telling; see ``EventKind``."""
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


def decoded(data: bytes) -> dict[str, Any]:
    """The contrary of ``ProcessRecord.encoded``.

    Raises:
        ValueError: it is something else, or of another version.
    """
    try:
        unpacked = zlib.decompressobj()
        text = unpacked.decompress(data, _MOST_BYTES)
        record = json.loads(text) if unpacked.eof else None
    except (RecursionError, ValueError, zlib.error) as error:
        raise ValueError(f"no numbers of a process: {error}") from None
    if not isinstance(record, dict):
        raise ValueError("no numbers of a process: they are not whole")
    if record.get("report") != VERSION:
        raise ValueError("numbers of another version of horovod")
    return record
