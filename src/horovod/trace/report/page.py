"""The report as one HTML file that needs no other file and no network.

``page.html`` is a Jinja2 template, which escapes all texts of the job. Tables are HTML; the script
draws charts from the numbers that the page holds as JSON.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from operator import itemgetter
from statistics import fmean, median
from typing import Any

import jinja2
from markupsafe import Markup

from horovod.core.base.ranks import ranks_text
from horovod.trace.report import number_texts
from horovod.trace.report.facts import Advice, Job, Report, Row
from horovod.trace.report.number_texts import number_text, rate_text, seconds_text, share_text

_NOTABLE = 0.01  # the share of time from which a rank is named
_MOST_TIMES = 12
_MOST_TILES = 2  # for numbers of the program
_IEC_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def page(report: Report) -> str:
    """The whole file."""
    environment = page_environment(__package__ or "")
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters |= {
        name.removesuffix("_text"): getattr(number_texts, name)
        for name in vars(number_texts)
        if name.endswith("_text")
    } | {"breakable": _breakable}
    return environment.get_template("page.html").render(
        report=report,
        job=report.job,
        rows=report.rows,
        nothing=number_texts.NOTHING,
        began=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(report.job.begin_s)),
        ending=_ending(report.job.status),
        hosts=_hosts(report.rows),
        tiles=_tiles(report),
        findings=_by_severity(report.job),
        logged=_logged_names(report.rows),
        late=sorted(((_held_up(report, row), row) for row in report.rows), key=_cost),
        time_starts=range(0, report.columns, _column_width(report)),
        means=lambda values: _means(values, _column_width(report)),
        by_tensors=list(_classes(report.by_tensors, _count_class)),
        by_bytes=list(_classes(report.by_bytes, _size_class)),
        trial_names=list(dict.fromkeys(n for trial in report.trials for n in trial.parameters)),
        changed=sum(is_changed for _, is_changed in report.settings.values()),
        data=_data(report),
        css=_asset("page.css"),
        script=_asset("page.js"),
    )


def page_environment(package: str) -> jinja2.Environment:
    """For the HTML templates among the files of ``package``; texts are escaped."""
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: _asset(name, package)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str, package: str = __package__ or "") -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _data(report: Report) -> dict[str, Any]:
    """The numbers that the script draws."""
    factors = {"step_s": ("step", 1e3), "waiting": ("waiting", 100.0)}
    factors |= {"blocked": ("blocked", 100.0), "rate": ("rate", 1e-6)}
    factors |= {"samples": ("samples", 1.0)}
    logged = _logged_names(report.rows)
    return {
        "start": round(report.first_s, 3),
        "columnSeconds": report.column_s,
        "columns": report.columns,
        "rows": [
            {
                "name": row.name,
                **{
                    name: _rounded(getattr(row, attribute), factor)
                    for attribute, (name, factor) in factors.items()
                },
                "logged": [
                    _rounded(row.logged.get(name, [None] * report.columns)) for name in logged
                ],
            }
            for row in report.rows
        ],
        "marks": [
            [round(event.at_s, 2), event.kind, f"{event.ranks} {event.text}".strip()]
            for event in report.events
            if event.kind != "launcher"
        ],
        "logged": logged,
        "trials": [[trial.score, trial.is_chosen] for trial in report.trials],
    }


def _rounded(values: Sequence[float | None], factor: float = 1.0) -> list[float | None]:
    return [None if value is None else float(f"{value * factor:.4g}") for value in values]


def _logged_names(rows: Sequence[Row]) -> list[str]:
    """The names of the program's numbers."""
    return list(dict.fromkeys(name for row in rows for name in row.logged))


def _breakable(name: str) -> Markup:
    """The name of a tensor, which may break after its parts."""
    return Markup("<wbr>").join(re.findall(r"[^._/]*[._/]*", name))


def _by_severity(job: Job) -> dict[str, list[Advice]] | None:
    """The doctor's findings by their severity; None without any to show."""
    if job.findings is None:
        return None
    return {
        severity: [finding for finding in job.findings if finding.severity == severity]
        for severity in ("problem", "advice", "note")
    }


def _ending(status: int) -> str:
    """The exit status of ``horovodrun`` as text."""
    if status == 0:
        return "finished"
    try:
        return f"ended by {signal.Signals(status - 128).name}"
    except ValueError:
        return f"failed, exit status {status}"


def _hosts(rows: Sequence[Row]) -> list[tuple[str, int, str]]:
    """Each host with the number of its processes and their ranks."""
    hosts: dict[str, list[str]] = {}
    for row in rows:
        hosts.setdefault(row.host, []).append(row.name)
    return [(host, len(names), ranks_text(names, most=len(names))) for host, names in hosts.items()]


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """The figures at the top of the page: name, value and note."""
    rows = report.rows
    steps = [row.mean_step_s for row in rows if row.mean_step_s is not None]
    rates = [row.size_bytes / max(row.end_s - row.begin_s, 1e-3) for row in rows]
    waiting = [row.waiting_share for row in rows]
    fused = f"{report.tensors / report.buckets:.1f}" if report.buckets else number_texts.NOTHING
    held_up = ((_held_up(report, row), row) for row in rows)
    share, worst = max(held_up, key=itemgetter(0), default=(0, None))
    late, cost = number_texts.NOTHING, "no rank in particular"
    if worst is not None and share >= _NOTABLE:
        late, cost = f"rank {worst.name}", f"costs the others {share_text(share)} of the time"
    return [
        ("Step time", seconds_text(median(steps) if steps else None), "median of the ranks"),
        *_training_tiles(rows),
        ("Waiting", share_text(fmean(waiting) if rows else None), "of the time, for other ranks"),
        ("Bandwidth", rate_text(fmean(rates) if rows else None), "given by each rank"),
        ("Fusion", fused, "tensors in a collective"),
        ("Held up by", late, cost),
    ]


def _training_tiles(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """What the program has logged."""
    rates = [row.mean_samples for row in rows if row.mean_samples is not None]
    tiles = []
    if rates:
        tiles.append(("Samples per second", number_text(sum(rates)), "of all ranks together"))
    for row in rows[:1]:
        for name, (value, step) in list(row.last_logged.items())[:_MOST_TILES]:
            at_step = "" if step is None else f" at step {step:,}"
            tiles.append((name, number_text(value), f"last of rank {row.name}{at_step}"))
    return tiles


def _held_up(report: Report, row: Row) -> float:
    """The share of all ranks' time that they waited for this one, estimated from a sample."""
    lived_s = sum(max(each.end_s - each.begin_s, 0.0) for each in report.rows)
    if not row.lateness.compared or not lived_s:
        return 0.0
    each_s = row.lateness.cost_s / row.lateness.compared
    return min(1.0, each_s * report.buckets / lived_s)


def _cost(held_up: tuple[float, Row]) -> float:
    return -held_up[1].lateness.cost_s


def _column_width(report: Report) -> int:
    return -(-report.columns // _MOST_TIMES)


def _means(values: Sequence[float | None], width: int) -> Iterator[float | None]:
    """The mean of each ``width`` values."""
    for start in range(0, len(values), width):
        known = [value for value in values[start : start + width] if value is not None]
        yield fmean(known) if known else None


def _classes(
    counts: Sequence[int], text: Callable[[int], str]
) -> Iterator[tuple[str, float, int, float]]:
    """Buckets by a power of two: the class, length of its bar, count and share.

    Empty classes are left out.
    """
    for power, count in enumerate(counts):
        if count:
            yield text(power), count / max(counts), count, count / sum(counts)


def _count_class(power: int) -> str:
    first, last = 2**power, 2 ** (power + 1) - 1
    return str(first) if first == last else f"{first:,}-{last:,}"


def _size_class(power: int) -> str:
    if power < 10:
        return f"{2**power} B" if power else "0-1 B"
    unit, rest = divmod(power - 10, 10)
    return f"from {2**rest} {_IEC_UNITS[min(unit, len(_IEC_UNITS) - 1)]}"
