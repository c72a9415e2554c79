"""The page itself: one file that needs nothing else, and no network.

Tables are here as HTML; the script draws charts of numbers that are in the page as JSON.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from importlib.resources import files
from statistics import fmean, median

from horovod.trace.report.facts import Report, Row
from horovod.trace.report.markup import (
    NOTHING,
    Markup,
    code,
    counted,
    joined,
    rate_text,
    seconds_text,
    share_text,
    tag,
)
from horovod.trace.report.sections import sections
from horovod.trace.report.tables import held_up

__all__ = ["page"]

_NOTABLE = 0.01  # of the time

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


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
    body = joined(
        [
            tag("a", "Skip to the charts", href="#content", class_="skip"),
            _header(report),
            tag("main", sections(report), id="content"),
            tag("footer", "Written by horovodrun --report; docs/report.md says how to read it."),
            Markup(f'<script type="application/json" id="data">{_data(report)}</script>'),
            tag("script", Markup(_asset("page.js"))),
        ],
        "\n",
    )
    whole = tag("html", "\n", tag("head", head), "\n", tag("body", body), "\n", lang="en")
    return f"<!doctype html>\n{whole}\n"


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
    facts = [
        counted(report.size, "rank"),
        counted(len({row.host for row in report.rows}), "host"),
        seconds_text(job.end_s - job.begin_s),
        f"began {began}",
        *([f"job {job.job_id}"] if job.job_id else []),
    ]
    return tag(
        "header",
        tag(
            "h1",
            "Training report ",
            tag("span", _ending(job.status), class_="badge good" if is_good else "badge bad"),
        ),
        tag("p", code(job.command), class_="command"),
        tag("p", joined(facts, " · "), class_="facts"),
        "" if is_good or not job.outcome else tag("pre", job.outcome.strip(), class_="outcome"),
        _tiles(report),
        _links(report),
    )


def _ending(status: int) -> str:
    """In words; the exit status is that of ``horovodrun``."""
    if status == 0:
        return "finished"
    try:
        return f"ended by {signal.Signals(status - 128).name}"
    except ValueError:
        return f"failed, exit status {status}"


def _tiles(report: Report) -> Markup:
    rows = report.rows
    steps = [row.mean_step_s for row in rows if row.mean_step_s is not None]
    rates = [row.size_bytes / _lived_s(row) for row in rows]
    together = report.tensors / report.buckets if report.buckets else None
    tiles = [
        ("Step time", seconds_text(median(steps)) if steps else NOTHING, "median of the ranks"),
        (
            "Waiting",
            _mean_share([row.waiting_share for row in rows]),
            "of the time, for other ranks",
        ),
        ("Bandwidth", rate_text(fmean(rates)) if rates else NOTHING, "given by each rank"),
        ("Fusion", f"{together:.1f}" if together else NOTHING, "tensors in a collective"),
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
    worst = max(report.rows, key=lambda row: held_up(report, row), default=None)
    share = held_up(report, worst) if worst is not None else 0.0
    if worst is None or share < _NOTABLE:
        return ("Held up by", NOTHING, "no rank in particular")
    return ("Held up by", f"rank {worst.name}", f"costs the others {share_text(share)} of the time")


def _lived_s(row: Row) -> float:
    return max(row.end_s - row.begin_s, 1e-3)


def _mean_share(shares: list[float]) -> str:
    return share_text(fmean(shares)) if shares else NOTHING


def _links(report: Report) -> Markup:
    names = {
        **({"steps": "Steps", "waits": "Waits", "late": "Who came last"} if report.rows else {}),
        **(
            {"bandwidth": "Bandwidth", "fusion": "Fusion", "slow": "Tensors"} if report.rows else {}
        ),
        **({"autotune": "Autotune"} if report.trials else {}),
        "events": "Events",
        "settings": "Settings",
        "versions": "Versions",
    }
    links = (tag("li", tag("a", text, href=f"#{name}")) for name, text in names.items())
    return tag("nav", tag("ul", *links), aria_label="Sections")
