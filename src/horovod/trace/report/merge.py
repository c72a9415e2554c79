"""Combines the records of all processes and the launcher's data to a report. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from horovod.core.base.ranks import ranks_text
from horovod.trace.report.facts import (
    BucketKey,
    Event,
    Job,
    Lateness,
    Report,
    Row,
    SlowTensor,
    Trial,
    culprit,
    lateness_of,
    named_last,
)
from horovod.trace.report.process_record import COLUMNS, record_from_bytes

_MOST_COLUMNS = 120
_MOST_SLOW = 20
_MOST_EVENTS = 300
_SAME_S = 5.0  # the same text of several ranks within that time is one event
# The numbers of horovod.core.operations.
_KINDS = ("allreduce", "allgather", "broadcast", "barrier", "alltoall", "reducescatter", "join")
_DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("bool", "bfloat16", "uint16"),
)

_Record = Mapping[str, Any]
_Late = dict[BucketKey, list[tuple[int, int]]]  # processes and their slacks


def collected(job: Job, told: Iterable[bytes]) -> tuple[Report, list[str]]:
    """The report of ``job`` from the bytes of records, and the errors of invalid ones."""
    records, problems = [], []
    for data in told:
        try:
            record = record_from_bytes(data)
            merged(job, [record])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            problems.append(repr(error))
        else:
            records.append(record)
    return merged(job, records), problems


def merged(job: Job, records: Iterable[_Record]) -> Report:
    """The report of ``job``; ``records`` are from ``record_from_bytes``, in any order.

    Raises:
        KeyError, TypeError, ValueError: a record is invalid.
    """
    found = sorted((r for r in records if r["worlds"]), key=_position)
    # A launcher that has taken over a job is younger than the job.
    began_s = min([job.begin_s, *(float(record["worlds"][0][0]) for record in found)])
    job = replace(job, begin_s=began_s)
    names = _names(found)
    grid = _grid(job, found)
    late = lateness_of({i: _slacks(record) for i, record in enumerate(found)})
    rows = [
        _row(record, names[i], job.begin_s, grid, late.get(i, Lateness()))
        for i, record in enumerate(found)
    ]
    first = found[0] if found else {"about": {}, "worlds": []}
    return Report(
        job=job,
        first_s=grid.first_s - job.begin_s,
        column_s=grid.column_s,
        columns=grid.columns,
        rows=rows,
        size=max((world[3] for r in found for world in r["worlds"]), default=0),
        by_tensors=_sums(record["by_tensors"] for record in found),
        by_bytes=_sums(record["by_bytes"] for record in found),
        buckets=_counted(found, "buckets"),
        seen_buckets=sum(int(record["seen_buckets"]) for record in found),
        tensors=_counted(found, "tensors"),
        slow=_slow(found, names, job.begin_s, culprit(late)),
        events=_events(job, found, names),
        trials=[
            Trial(at_s - job.begin_s, parameters, float(score), bool(is_chosen))
            for record in found
            for at_s, parameters, score, is_chosen in record["trials"]
        ],
        settings=_settings(first["about"]),
        versions=_versions(found, names),
        data_plane=str(first["worlds"][-1][4]) if first["worlds"] else "",
        has_lateness=any(lateness.compared for lateness in late.values()),
    )


def _position(record: _Record) -> tuple[int, float]:
    """The rank and begin of the process' first world."""
    begin_s, _, rank, _, _ = record["worlds"][0]
    return int(rank), float(begin_s)


def _names(records: Sequence[_Record]) -> list[str]:
    """The ranks' names, with the pid if several processes had the same rank in turn."""
    ranks = [_last_rank(record) for record in records]
    return [
        f"{rank} (pid {record['process']['pid']})" if ranks.count(rank) > 1 else str(rank)
        for record, rank in zip(records, ranks, strict=True)
    ]


def _last_rank(record: _Record) -> int:
    return int(record["worlds"][-1][2])


class _Grid(NamedTuple):
    """The columns of time, from ``first_s`` on (seconds since 1970)."""

    first_s: float
    column_s: float
    columns: int


def _grid(job: Job, records: Sequence[_Record]) -> _Grid:
    """Columns that are not finer than the records, from the first step on."""
    finest_s = 1.0
    begins = {"steps": job.end_s, "buckets": job.end_s}
    for record in records:
        rows = record["rows"]
        if len(rows) > 1:
            finest_s = max(finest_s, (float(rows[-1][1]) - float(rows[0][0])) / len(rows))
        for name, known_s in begins.items():
            at = 2 + COLUMNS.index(name)
            begun = (float(row[0]) for row in rows if row[at])
            begins[name] = min(known_s, next(begun, known_s))
    last_s = max([job.end_s, *(float(record["told_s"]) for record in records)])
    first_s = next((at_s for at_s in begins.values() if at_s < job.end_s), job.begin_s)
    whole_s = max(last_s - first_s, 1.0)
    count = max(1, min(_MOST_COLUMNS, int(whole_s / finest_s)))
    return _Grid(first_s, whole_s / count, count)


def _row(record: _Record, name: str, begin_s: float, grid: _Grid, lateness: Lateness) -> Row:
    rows = _with_pending(record)
    sums = _resampled(rows, grid, COLUMNS)
    total = {key: sum(values[key] for _, _, values in rows) for key in COLUMNS}
    seconds = sum(end - begin for begin, end, _ in rows) or 1.0
    trained_s = sum(end - begin for begin, end, values in rows if values["samples"])
    sees_waits = bool(record["seen_buckets"]) or not total["buckets"]  # else no recorder
    return Row(
        name=name,
        rank=_last_rank(record),
        host=str(record["process"]["host"]),
        pid=int(record["process"]["pid"]),
        begin_s=float(record["worlds"][0][0]) - begin_s,
        end_s=float(record["told_s"]) - begin_s,
        step_s=[s["step_s"] / s["steps"] if s and s["steps"] > 0.001 else None for s in sums],
        waiting=[_share(s, "waiting_s") if sees_waits else None for s in sums],
        blocked=[_share(s, "blocked_s") for s in sums],
        rate=[s["bytes"] / s["seconds"] if s else None for s in sums],
        steps=round(total["steps"]),
        mean_step_s=total["step_s"] / total["steps"] if total["steps"] else None,
        size_bytes=total["bytes"],
        waiting_share=min(1.0, total["waiting_s"] / seconds),
        blocked_share=total["blocked_s"] / seconds,
        samples=[s["samples"] / s["seconds"] if s else None for s in sums],
        mean_samples=total["samples"] / trained_s if trained_s else None,
        logged=_logged(record, grid),
        last_logged={
            str(name): (None if value is None else float(value), step)
            for name, (value, step) in record["last_logged"].items()
        },
        lateness=lateness,
    )


def _logged(record: _Record, grid: _Grid) -> dict[str, list[float | None]]:
    """The mean of the program's numbers in each column, by name."""
    found = {}
    for name in record["last_logged"]:
        rows: _Rows = []
        for (begin, end, *_), logged in zip(record["rows"], record["logged"], strict=True):
            total, count = logged.get(name, (0.0, 0))
            rows.append((float(begin), float(end), {"total": float(total), "count": float(count)}))
        sums = _resampled(rows, grid, ("total", "count"))
        found[str(name)] = [s["total"] / s["count"] if s and s["count"] else None for s in sums]
    return found


_Rows = list[tuple[float, float, dict[str, float]]]


def _with_pending(record: _Record) -> _Rows:
    """The rows of a record, with the wait that had not ended when it was written."""
    rows: _Rows = [
        (float(begin), float(end), dict(zip(COLUMNS, map(float, values), strict=True)))
        for begin, end, *values in record["rows"]
    ]
    if pending_s := float(record["pending_s"]):
        for begin, end, values in rows:
            values["waiting_s"] += max(0.0, end - max(begin, pending_s))
    return rows


def _resampled(rows: _Rows, grid: _Grid, names: Sequence[str]) -> list[dict[str, float] | None]:
    """The sums of each column, and the ``seconds`` of it that rows cover."""
    sums: list[dict[str, float] | None] = [None] * grid.columns
    for begin, end, values in rows:
        took = end - begin
        if took <= 0:
            continue
        first = max(0, int((begin - grid.first_s) / grid.column_s))
        last = min(grid.columns - 1, int((end - grid.first_s) / grid.column_s))
        for index in range(first, last + 1):
            left = grid.first_s + index * grid.column_s
            part = min(end, left + grid.column_s) - max(begin, left)
            if part <= 0:
                continue
            into = sums[index]
            if into is None:
                into = sums[index] = dict.fromkeys((*names, "seconds"), 0.0)
            into["seconds"] += part
            for name, value in values.items():
                into[name] += value * part / took
    return sums


def _share(sums: Mapping[str, float] | None, name: str) -> float | None:
    return None if sums is None else min(1.0, sums[name] / sums["seconds"])


def _sums(lists: Iterable[Sequence[int]]) -> list[int]:
    return [sum(values) for values in zip(*lists, strict=True)]


def _counted(records: Iterable[_Record], name: str) -> int:
    at = 2 + COLUMNS.index(name)
    return round(sum(float(row[at]) for record in records for row in record["rows"]))


def _slacks(record: _Record) -> list[tuple[BucketKey, int]]:
    """The slacks of buckets in the record."""
    return [((world, ps, number), int(us)) for world, ps, number, us in record["slacks"]]


def _slow(
    records: Sequence[_Record], names: Sequence[str], begin_s: float, usual: int | None
) -> list[SlowTensor]:
    """The slowest tensors; ``usual`` is the process that causes most waits, if there is one."""
    late: _Late = defaultdict(list)
    for process, record in enumerate(records):
        for key, slack_us in _slacks(record):
            late[key].append((process, slack_us))
        for (world, process_set, number), slack_us, was_last, _ in record["late"]:
            if was_last:
                late[world, process_set, number].append((process, int(slack_us)))
    worst: dict[str, tuple[int, _Record]] = {}
    for process, record in enumerate(records):
        for entry in record["slow"]:
            known = worst.get(entry["name"])
            if known is None or entry["took_us"] > known[1]["took_us"]:
                worst[entry["name"]] = (process, entry)
    found = sorted(worst.values(), key=lambda item: -item[1]["took_us"])[:_MOST_SLOW]
    slow = []
    for process, entry in found:
        waited_for = _waited_for(entry, late, names, None if process == usual else usual)
        slow.append(_slow_tensor(entry, names[process], begin_s, waited_for))
    return slow


def _waited_for(entry: _Record, late: _Late, names: Sequence[str], usual: int | None) -> str:
    """The rank that held it up for most of its time, as text; empty if none did."""
    if 2 * max(entry["waited_us"], entry["held_us"]) < entry["took_us"]:
        return ""
    if entry["waited_us"] > entry["held_us"]:
        return f"rank {entry['waited_for']}"
    world, process_set, number = entry["held_by"]
    process = named_last(entry["held_us"], late.get((world, process_set, number), ()))
    if process is not None:
        return f"rank {names[process]}"
    return f"probably rank {names[usual]}" if usual is not None else ""


def _slow_tensor(entry: _Record, rank: str, begin_s: float, waited_for: str) -> SlowTensor:
    return SlowTensor(
        name=str(entry["name"]),
        kind=_name_of(_KINDS, entry["kind"]),
        dtype=_name_of(_DTYPES, entry["dtype"]),
        shape=tuple(int(dim) for dim in entry["shape"]),
        tensors=int(entry["tensors"]),
        size_bytes=int(entry["bytes"]),
        at_s=float(entry["at_s"]) - begin_s,
        took_s=entry["took_us"] / 1e6,
        queued_s=entry["queued_us"] / 1e6,
        rank=rank,
        waited_for=waited_for,
    )


def _name_of(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else ""


def _events(job: Job, records: Sequence[_Record], names: Sequence[str]) -> list[Event]:
    events = [Event(at_s - job.begin_s, "launcher", "", text) for at_s, text in job.messages]
    events += _worlds(job, records)
    told: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for process, record in enumerate(records):
        for at_s, kind, text in record["events"]:
            told[str(kind), str(text)].append((float(at_s), process))
    for (kind, text), of_ranks in told.items():
        for at_s, processes in _grouped(of_ranks):
            ranks = ranks_text([names[process] for process in processes])
            events.append(Event(at_s - job.begin_s, kind, ranks, text))
    return sorted(events, key=lambda event: event.at_s)[:_MOST_EVENTS]


def _grouped(told: list[tuple[float, int]]) -> list[tuple[float, list[int]]]:
    """Times, each with the processes that have recorded the event then."""
    groups: list[tuple[float, list[int]]] = []
    for at_s, process in sorted(told):
        if not groups or at_s - groups[-1][0] > _SAME_S or process in groups[-1][1]:
            groups.append((at_s, []))
        groups[-1][1].append(process)
    return [(at_s, sorted(processes)) for at_s, processes in groups]


def _worlds(job: Job, records: Sequence[_Record]) -> list[Event]:
    """When each world began for the first time."""
    began: dict[str, tuple[float, int]] = {}
    for record in records:
        for at_s, world, _, size, _ in record["worlds"]:
            known = began.get(world)
            if known is None or at_s < known[0]:
                began[world] = (float(at_s), int(size))
    events, before = [], 0
    for at_s, size in sorted(began.values()):
        change = "" if size == before or not before else f", after {_processes(before)}"
        events.append(
            Event(at_s - job.begin_s, "world", "", f"a world of {_processes(size)} began{change}")
        )
        before = size
    return events


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _settings(about: Mapping[str, Any]) -> dict[str, tuple[str, bool]]:
    changed = set(about.get("changed", ()))
    return {str(n): (str(text), n in changed) for n, text in about.get("settings", {}).items()}


def _versions(records: Sequence[_Record], names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The versions of each name with the ranks that have them; no ranks if all agree."""
    by_name: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for process, record in enumerate(records):
        for name, text in record["about"].get("versions", {}).items():
            by_name[str(name)][str(text)].append(names[process])
    return {
        name: {
            text: ranks_text(ranks) if len(ranks) < len(records) else ""
            for text, ranks in texts.items()
        }
        for name, texts in by_name.items()
    }
