"""The sections of the page: a heading, what it shows in words, a chart and tables."""

from __future__ import annotations

from horovod.trace.report import tables
from horovod.trace.report.facts import Report
from horovod.trace.report.markup import (
    Markup,
    details,
    joined,
    rate_text,
    seconds_text,
    share_text,
    tag,
)

__all__ = ["sections"]

_MOST_LATE = 10
_PLOT_HINT = "Point at the chart, or focus it and use the arrow keys."


def sections(report: Report) -> Markup:
    """All of them; those about ranks only if any has told something."""
    about_ranks = [section(report) for section in _OF_RANKS] if report.rows else [_nothing()]
    found = [*about_ranks, _events(report), _settings(report), _versions(report)]
    return joined(filter(None, found), "\n")


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
        "What each rank cost the others by coming last: the part of their time that they waited "
        "for it. Some collectives are compared, the same ones on all ranks.",
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
    return str(first) if first == last else f"{first:,}-{last:,}"


def _size_class(power: int) -> str:
    if power < 10:
        return f"{2**power} B" if power else "0-1 B"
    units = ("KiB", "MiB", "GiB", "TiB", "PiB")
    unit, rest = divmod(power - 10, 10)
    return f"from {2**rest} {units[min(unit, len(units) - 1)]}"


def _slow(report: Report) -> Markup:
    if not report.slow:
        return _section("slow", "Slowest tensors", "No operation was seen.")
    return _section(
        "slow",
        "Slowest tensors",
        "The slowest run of each, from its submission by a rank until it was done. It begins when "
        "all ranks have submitted it and earlier collectives are done.",
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


_OF_RANKS = (_steps, _waits, _late, _bandwidth, _fusion, _slow, _autotune)
