"""The page itself: one file that needs nothing else, and no network.

Tables are here as HTML; the script draws charts of numbers that are in the page as JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.resources import files
from statistics import fmean, median

from horovod.trace.report import tables
from horovod.trace.report.facts import Report, Row
from horovod.trace.report.markup import (
    Markup,
    bytes_text,
    code,
    details,
    joined,
    rate_text,
    seconds_text,
    share_text,
    tag,
)

__all__ = ["page"]

_MOST_LATE = 10
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_PLOT_HINT = "Point at the chart, or focus it and use the arrow keys."


def page(report: Report) -> str:
    """The whole file."""
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            tag("title", f"Report: {report.job.command}"[:120]),
            tag("style", Markup(_asset("page.css"))),
        ],
        "\n",
    )
    sections = [section(report) for section in _SECTIONS] if report.rows else [_nothing()]
    sections += [_events(report), _settings(report), _versions(report)]
    body = joined(
        [
            tag("a", "Skip to the charts", href="#content", class_="skip"),
            _header(report),
            tag("main", joined(filter(None, sections), "\n"), id="content"),
            tag("footer", "Written by horovodrun --report; docs/report.md says how to read it."),
            Markup(f'<script type="application/json" id="data">{_data(report)}</script>'),
            tag("script", Markup(_asset("page.js"))),
        ],
        "\n",
    )
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _asset(name: str) -> str:
    return files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _data(report: Report) -> str:
    """What the script draws, as JSON in which nothing can end the element that it is in."""
    by_name: dict[str, tuple[Callable[[Row], list[float | None]], float]] = {
        "step": (lambda row: row.step_s, 1e3),
        "waiting": (lambda row: row.waiting, 100.0),
        "blocked": (lambda row: row.blocked, 100.0),
        "rate": (lambda row: row.rate, 1e-6),
    }
    rows = [
        {
            "name": row.name,
            **{key: _short(values(row), factor) for key, (values, factor) in by_name.items()},
        }
        for row in report.rows
    ]
    data = {
        "columnSeconds": report.column_s,
        "columns": report.columns,
        "rows": rows,
        "marks": [
            [round(event.at_s, 2), event.kind, f"{event.who} {event.text}".strip()]
            for event in report.events
            if event.kind != "launcher"
        ],
        "trials": [[trial.score, trial.is_chosen] for trial in report.trials],
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _short(values: list[float | None], factor: float) -> list[float | None]:
    return [None if value is None else float(f"{value * factor:.3g}") for value in values]


# Heading.


def _header(report: Report) -> Markup:
    job = report.job
    began = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(job.begin_s))
    is_good = job.status == 0
    word = "finished" if is_good else f"failed, exit status {job.status}"
    facts = [
        f"{report.size} {'rank' if report.size == 1 else 'ranks'}",
        f"{len({row.host for row in report.rows})} host(s)",
        seconds_text(job.end_s - job.begin_s),
        f"began {began}",
    ]
    return tag(
        "header",
        tag(
            "h1",
            "Training report ",
            tag("span", word, class_="badge good" if is_good else "badge bad"),
        ),
        tag("p", code(job.command), class_="command"),
        tag("p", joined(facts, " · "), class_="facts"),
        "" if is_good or not job.outcome else tag("pre", job.outcome.strip(), class_="outcome"),
        _tiles(report),
        _links(report),
    )


def _tiles(report: Report) -> Markup:
    rows = report.rows
    steps = [row.mean_step_s for row in rows if row.mean_step_s is not None]
    rates = [row.size_bytes / _lived_s(row) for row in rows]
    together = report.tensors / report.buckets if report.buckets else None
    tiles = [
        ("Step time", seconds_text(median(steps)) if steps else "–", "median of the ranks"),
        (
            "Waiting",
            _mean_share([row.waiting_share for row in rows]),
            "of the time, for other ranks",
        ),
        ("Bandwidth", rate_text(fmean(rates)) if rates else "–", "given by each rank"),
        ("Fusion", f"{together:.1f}" if together else "–", "tensors in a collective"),
        _late_tile(report),
    ]
    return tag(
        "dl",
        *(
            tag("div", tag("dt", name), tag("dd", value), tag("dd", text, class_="note"))
            for name, value, text in tiles
        ),
        class_="tiles",
    )


def _late_tile(report: Report) -> tuple[str, str, str]:
    worst = max(report.rows, key=lambda row: row.lateness.cost_s, default=None)
    if worst is None or not worst.lateness.last:
        return ("Came last", "–", "no rank held up others")
    share = worst.lateness.last / worst.lateness.compared
    return ("Came last", f"rank {worst.name}", f"in {share_text(share)} of the collectives")


def _lived_s(row: Row) -> float:
    return max(row.end_s - row.begin_s, 1e-3)


def _mean_share(shares: list[float]) -> str:
    return share_text(fmean(shares)) if shares else "–"


def _links(report: Report) -> Markup:
    names = {
        **({"steps": "Steps", "waits": "Waits", "late": "Who came last"} if report.rows else {}),
        **(
            {"bandwidth": "Bandwidth", "fusion": "Fusion", "slow": "Tensors"} if report.rows else {}
        ),
        **({"autotune": "Autotune"} if report.trials else {}),
        **{"events": "Events", "settings": "Settings", "versions": "Versions"},
    }
    links = (tag("li", tag("a", text, href=f"#{name}")) for name, text in names.items())
    return tag("nav", tag("ul", *links), aria_label="Sections")


# Sections.


def _section(name: str, heading: str, text: str, *content: object) -> Markup:
    title = tag("h2", heading, id=f"{name}-heading")
    return tag(
        "section", title, tag("p", text), *content, id=name, aria_labelledby=f"{name}-heading"
    )


def _plot(name: str, label: str, controls: Markup = Markup("")) -> Markup:  # noqa: B008
    """Where the script draws."""
    plot = tag(
        "div", class_="plot", data_plot=name, tabindex="0", role="application", aria_label=label
    )
    readout = tag("p", _PLOT_HINT, class_="readout", aria_live="polite")
    return tag("figure", controls, plot, readout)


def _nothing() -> Markup:
    text = "No process has told anything: none got as far as init."
    return _section("nothing", "No numbers", text)


def _steps(report: Report) -> Markup:
    return _section(
        "steps",
        "Step time",
        "Time of a training step: from one submission of the same tensor to the next.",
        _plot("steps", "Step time of each rank over time, in milliseconds"),
        details(
            "Step times as a table",
            tables.over_time(
                report, "Step time by rank and time", lambda r: r.step_s, seconds_text
            ),
        ),
        details("Ranks as a table", tables.rank_table(report)),
    )


def _waits(report: Report) -> Markup:
    choices = (("waiting", "waiting for ranks"), ("blocked", "blocked"), ("step", "step time"))
    radios = (
        tag(
            "label",
            Markup(
                f'<input type="radio" name="measure" value="{value}"'
                f"{' checked' if value == 'waiting' else ''}> "
            ),
            text,
        )
        for value, text in choices
    )
    legend = tag("legend", "Show", class_="unseen")
    return _section(
        "waits",
        "Waits",
        "Waiting: part of the time in which a rank had given everything and others had not. A rank "
        "that waits less than all others is the one that they wait for. Blocked: part of the time "
        "in which its program waited for results.",
        _plot("heat", "Heat map of ranks over time", tag("fieldset", legend, *radios)),
        details(
            "Waits as a table",
            tables.over_time(report, "Waiting by rank and time", lambda r: r.waiting, share_text),
        ),
        details(
            "Blocked time as a table",
            tables.over_time(report, "Blocked by rank and time", lambda r: r.blocked, share_text),
        ),
    )


def _late(report: Report) -> Markup:
    if not report.has_lateness:
        note = tag("p", "There were no collectives of several ranks to compare.", class_="note")
        return _section("late", "Who came last", "The rank that the others waited for.", note)
    rest = ""
    if len(report.rows) > _MOST_LATE:
        rest = details(f"All {len(report.rows)} ranks", tables.late_table(report))
    return _section(
        "late",
        "Who came last",
        "The rank that the others waited for, in collectives that were compared over all ranks.",
        tables.late_table(report, _MOST_LATE),
        rest,
    )


def _bandwidth(report: Report) -> Markup:
    return _section(
        "bandwidth",
        "Bandwidth",
        "Bytes per second of the tensors that each rank submitted.",
        _plot("bandwidth", "Bytes that each rank submitted over time, in megabytes per second"),
        details(
            "Bandwidth as a table",
            tables.over_time(report, "Bandwidth by rank and time", lambda r: r.rate, rate_text),
        ),
    )


def _fusion(report: Report) -> Markup:
    part = report.seen_buckets / report.buckets if report.buckets else 0.0
    seen = "" if part >= 0.99 else f" Seen: {share_text(part)} of {report.buckets:,} collectives."
    return _section(
        "fusion",
        "Fusion",
        "What ran together as one collective, by the number of tensors and by their size." + seen,
        tag(
            "div",
            tables.histogram(
                "Collectives by their number of tensors", "Tensors", report.by_tensors, _count_class
            ),
            tables.histogram("Collectives by their size", "Size", report.by_bytes, _size_class),
            class_="pair",
        ),
    )


def _count_class(power: int) -> str:
    first, last = 2**power, 2 ** (power + 1) - 1
    return str(first) if first == last else f"{first:,}–{last:,}"


def _size_class(power: int) -> str:
    if power < 10:
        return f"{2**power} B" if power else "0–1 B"
    units = ("KiB", "MiB", "GiB", "TiB", "PiB")
    unit, rest = divmod(power - 10, 10)
    return f"from {2**rest} {units[min(unit, len(units) - 1)]}"


def _slow(report: Report) -> Markup:
    if not report.slow:
        return _section("slow", "Slowest tensors", "No operation was seen.")
    return _section(
        "slow",
        "Slowest tensors",
        "The slowest run of each: from its submission by a rank until it was done. It has not begun "
        "until all ranks had submitted it and earlier collectives were done.",
        tables.slow_table(report),
    )


def _autotune(report: Report) -> Markup:
    if not report.trials:
        return Markup("")
    return _section(
        "autotune",
        "Autotune",
        "The score of each sample of parameters, in bytes per second: more is better.",
        _plot("trials", "Score of each sample that autotuning took"),
        details("Samples as a table", tables.trial_table(report)),
    )


def _events(report: Report) -> Markup:
    text = "Failures, new worlds of elastic jobs, stalls, and what horovodrun said."
    return _section("events", "Events", text, tables.event_table(report))


def _settings(report: Report) -> Markup:
    changed = sum(is_changed for _, is_changed in report.settings.values())
    if not report.settings:
        return _section("settings", "Settings", "No process has told its settings.")
    text = f"{changed} of {len(report.settings)} settings are not at their defaults."
    return _section(
        "settings",
        "Settings",
        text,
        tables.setting_table(report, only_changed=True) if changed else "",
        details("All settings", tables.setting_table(report, only_changed=False)),
    )


def _versions(report: Report) -> Markup:
    text = f"Data plane: {report.data_plane}." if report.data_plane else "No process has told any."
    return _section(
        "versions",
        "Versions and hosts",
        text,
        tables.version_table(report) if report.versions else "",
        details("Hosts and ranks", tables.host_table(report)) if report.rows else "",
    )


_SECTIONS = (_steps, _waits, _late, _bandwidth, _fusion, _slow, _autotune)
