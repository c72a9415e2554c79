"""The tables of the page: what charts show, in numbers, and what needs no chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from horovod.core.base.ranks import ranks_text
from horovod.trace.report.facts import Report, Row, SlowTensor
from horovod.trace.report.markup import (
    NOTHING,
    Markup,
    bar,
    bytes_text,
    code,
    joined,
    moment_text,
    plain,
    rate_text,
    seconds_text,
    share_text,
    table,
    tag,
)

__all__ = [
    "event_table",
    "held_up",
    "histogram",
    "host_table",
    "late_table",
    "over_time",
    "rank_table",
    "setting_table",
    "slow_table",
    "trial_table",
    "version_table",
]

_MOST_TIMES = 12
_EVENT_WORDS = {"failure": "failure", "world": "world", "stall": "stall", "launcher": "horovodrun"}

Values = Callable[[Row], list[float | None]]


def over_time(
    report: Report, caption: str, values: Values, text: Callable[[float | None], str]
) -> Markup:
    """Ranks by time, in 12 columns at most: means of what is in each."""
    width = -(-report.columns // _MOST_TIMES)
    starts = range(0, report.columns, width)
    heads = ["Rank", *(f"from {seconds_text(start * report.column_s)}" for start in starts)]

    def mean(row: Row, start: int) -> str:
        known = [value for value in values(row)[start : start + width] if value is not None]
        return text(fmean(known) if known else None)

    rows = [[row.name, *(mean(row, start) for start in starts)] for row in report.rows]
    return table(caption, heads, rows)


def rank_table(report: Report) -> Markup:
    """One line for each process."""
    heads = ["Rank", "Host", "Process", "Steps", "Step time", "Waiting", "Blocked", "Data"]
    rows = [
        [
            row.name,
            row.host,
            row.pid,
            row.steps,
            seconds_text(row.mean_step_s),
            share_text(row.waiting_share),
            share_text(row.blocked_share),
            bytes_text(row.size_bytes),
        ]
        for row in report.rows
    ]
    return table("Ranks", heads, rows)


def late_table(report: Report, most: int | None = None) -> Markup:
    """Who held up the others, the worst first."""
    rows = sorted(report.rows, key=lambda row: -row.lateness.cost_s)[:most]
    top = max((held_up(report, row) for row in rows), default=0.0)

    def line(row: Row) -> list[object]:
        lateness = row.lateness
        if not lateness.compared:
            return [row.name, NOTHING, "", NOTHING, NOTHING]
        cost = held_up(report, row)
        each = seconds_text(lateness.cost_s / lateness.last) if lateness.last else NOTHING
        part = share_text(lateness.last / lateness.compared)
        return [row.name, share_text(cost), bar(cost / top if top else 0.0), part, each]

    unseen = tag("span", "Share", class_="unseen")
    heads = ["Rank", "Others' time", unseen, "Came last in", "They waited each time"]
    return table("Which rank came last", heads, map(line, rows))


def held_up(report: Report, row: Row) -> float:
    """The part of all ranks' time that they waited for this one, going by what was compared."""
    if not row.lateness.compared:
        return 0.0
    lived_s = sum(max(each.end_s - each.begin_s, 0.0) for each in report.rows)
    each_s = row.lateness.cost_s / row.lateness.compared
    return min(1.0, each_s * report.buckets / lived_s) if lived_s else 0.0


def histogram(caption: str, what: str, counts: Sequence[int], text: Callable[[int], str]) -> Markup:
    """Buckets by a power of two; empty classes at both ends are left out."""
    used = [index for index, count in enumerate(counts) if count]
    if not used:
        return tag("p", "No collective was seen.", class_="note")
    classes = range(used[0], used[-1] + 1)
    top, whole = max(counts), sum(counts)
    rows = [
        [
            text(index),
            bar(counts[index] / top),
            f"{counts[index]:,}",
            share_text(counts[index] / whole),
        ]
        for index in classes
    ]
    heads = [what, tag("span", "Share", class_="unseen"), "Collectives", "Part"]
    return table(caption, heads, rows)


def slow_table(report: Report) -> Markup:
    """The slowest run of each tensor."""
    heads = ["Tensor", "Took", "Not begun for", "Size", "What", "Rank", "Waited for", "At"]

    def line(slow: SlowTensor) -> list[object]:
        group = f" and {slow.tensors - 1} more" if slow.tensors > 1 else ""
        shape = "\N{MULTIPLICATION SIGN}".join(map(str, slow.shape)) or "scalar"
        name = joined([code(slow.name), group])
        return [
            name,
            seconds_text(slow.took_s),
            seconds_text(slow.queued_s),
            bytes_text(slow.size_bytes),
            joined([f"{slow.kind} {slow.dtype} ", tag("span", shape, class_="shape")]),
            slow.rank,
            slow.waited_for or NOTHING,
            moment_text(slow.at_s),
        ]

    return table("Slowest tensors", heads, map(line, report.slow))


def event_table(report: Report) -> Markup:
    """What happened, in order."""
    rows = [
        [
            moment_text(max(event.at_s, 0.0)),
            tag("span", _EVENT_WORDS.get(event.kind, event.kind), class_=f"kind {event.kind}"),
            event.who or NOTHING,
            event.text,
        ]
        for event in report.events
    ]
    return table("Events", ["At", "Kind", "Seen by", "What"], rows, numbers=False)


def trial_table(report: Report) -> Markup:
    """What autotuning has tried."""
    names = list(dict.fromkeys(name for trial in report.trials for name in trial.parameters))
    rows = [
        [
            f"{number}{', chosen' if trial.is_chosen else ''}",
            rate_text(trial.score),
            *(_parameter(trial.parameters.get(name)) for name in names),
        ]
        for number, trial in enumerate(report.trials, 1)
    ]
    return table("What autotuning has tried", ["Sample", "Score", *map(code, names)], rows)


def _parameter(value: bool | float | str | None) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_table(report: Report, *, only_changed: bool) -> Markup:
    """Settings by their variables."""
    rows = [
        [code(name), plain(text or "none"), "changed" if is_changed else "default"]
        for name, (text, is_changed) in report.settings.items()
        if is_changed or not only_changed
    ]
    heads = ["Variable", "Value", "Is"]
    return table("Changed settings" if only_changed else "All settings", heads, rows, numbers=False)


def version_table(report: Report) -> Markup:
    """Versions of everything, and who has another one."""
    rows = [
        [name, text, ranks or "all ranks"]
        for name, texts in report.versions.items()
        for text, ranks in texts.items()
    ]
    return table("Versions", ["What", "Version", "Where"], rows, numbers=False)


def host_table(report: Report) -> Markup:
    """Which ranks are where."""
    hosts: dict[str, list[Row]] = {}
    for row in report.rows:
        hosts.setdefault(row.host, []).append(row)
    rows = [
        [host, len(found), ranks_text([row.name for row in found], most=len(found))]
        for host, found in hosts.items()
    ]
    return table("Hosts", ["Host", "Processes", "Ranks"], rows, numbers=False)
