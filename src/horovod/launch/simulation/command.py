"""``horovodrun --simulate``: predicts the steps of a cluster, prints a table and advice."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

from rich.table import Table

from horovod.core.base.checked import printable
from horovod.launch.doctor.jobs import NothingFoundError, find_job, gather
from horovod.launch.doctor.tables import plain_console, plain_table
from horovod.launch.model.argument_checks import OneLineParser, writable_file
from horovod.launch.simulation.page import page, write_page
from horovod.simulate import (
    ARCHITECTURES,
    Cluster,
    Costs,
    Failures,
    Network,
    Options,
    Prediction,
    Workload,
    network_named,
    network_names,
    of_model,
    predict,
)
from horovod.simulate.advice import Advice, advise
from horovod.simulate.cluster import costs_in
from horovod.simulate.collective_time import ALGORITHMS
from horovod.simulate.recorded import workload_of
from horovod.simulate.timeline_file import workload_in

_WIDTH = 110
_DEFAULT_NETWORK = "25gbit-tcp"
# A host that is silent is given up after 30 s; then its successor starts Python and joins.
_RECOVERY_S = 35.0


def run_simulation(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print the prediction for the words after ``--simulate``; 0, or 2 for wrong ones."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        output = None if given.output is None else writable_file("-o", Path(given.output))
        workload = _workload(given, environ)
        costs, network = _places(given)
        options = Options(algorithm=given.algorithm, fusion_threshold=given.fusion_threshold)
        clusters = [_cluster(ranks, given, network, costs) for ranks in given.ranks]
        failures = _failures(given, workload, costs)
        found = [
            predict(workload, each, options, given.jitter, failures=failures) for each in clusters
        ]
        advice = advise(workload, clusters[-1], options, given.jitter, failures)
        if output is not None:
            rows = _rows(found)
            write_page(output, page(workload, network, given.algorithm, found, advice, rows))
            print(f"horovodrun: wrote {output}", file=sys.stderr)
    except (ValueError, OSError, NothingFoundError) as error:
        parser.error(printable(str(error)))
    if given.json:
        print(json.dumps(as_json(workload, network, found, advice), indent=2))
    else:
        print(as_text(workload, network, found, advice))
    return 0


class _Parser(OneLineParser):
    def problem_of(self, word: str) -> str:
        """A sentence about a word that is not known, perhaps an option of the job."""
        if word.partition("=")[0] == "--link-compression":
            return "--link-compression: no such option; the advice says what formats would gain"
        return super().problem_of(word)


def _parser() -> OneLineParser:
    parser = _Parser(
        prog="horovodrun --simulate",
        description="Predict how training scales on a cluster that is not at hand.",
        epilog="docs/simulate.md says what is computed, and how close it comes.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("ranks", type=_numbers, help="how many ranks, such as 8,64,512")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--from",
        dest="job",
        metavar="JOB",
        help="a job that has run here, or the file of a timeline",
    )
    what.add_argument("--model", help=f"one of {', '.join(sorted(ARCHITECTURES))}")
    add("--batch", type=int, default=64, help="samples of a rank in a step (64)")
    add("--samples-per-second", type=float, help="of one device alone; --model")
    places = parser.add_mutually_exclusive_group()
    places.add_argument("--ranks-per-host", type=int, default=1, metavar="N", help="(1)")
    places.add_argument(
        "--hosts", type=_layout, metavar="HOSTSxN", help="such as 64x8: N ranks on each host"
    )
    add("--network", help=f"a file, or {', '.join(network_names())} ({_DEFAULT_NETWORK})")
    add("--costs", metavar="FILE", help="what horovodrun --calibrate has written")
    add("--algorithm", choices=sorted(ALGORITHMS), default="horovod")
    add("--fusion-threshold", type=int, default=Options().fusion_threshold)
    add(
        "--jitter",
        type=float,
        default=0.02,
        help="standard deviation of a rank's computing, as a part of it (0.02)",
    )
    add("--mtbf", type=float, metavar="HOURS", help="between failures of a host; an elastic job")
    add(
        "--recovery-s",
        type=float,
        default=_RECOVERY_S,
        help=f"from a failure to the next step ({_RECOVERY_S:g}); --mtbf",
    )
    add("--commit-s", type=float, help="a state.commit() (three copies of the gradients); --mtbf")
    add("--json", action="store_true", help="print JSON for programs")
    add("-o", "--output", metavar="FILE.html", help="write a page with a chart, too")
    return parser


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"numbers of ranks, such as 8,64,512, not {text!r}")
    return sorted(set(numbers))


def _layout(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,9})x(\d{1,9})", text)
    if found is None or not int(found[1]) or not int(found[2]):
        raise argparse.ArgumentTypeError(f"hosts and ranks on each, such as 64x8, not {text!r}")
    return int(found[1]), int(found[2])


def _workload(given: argparse.Namespace, environ: Mapping[str, str]) -> Workload:
    if given.model is not None:
        if given.samples_per_second is None:
            raise ValueError(
                "--model needs --samples-per-second: what one device does alone with this batch, "
                "for example --samples-per-second 125"
            )
        return of_model(given.model, given.batch, given.samples_per_second)
    if Path(given.job).is_file():
        return workload_in(Path(given.job))
    try:
        evidence = gather(find_job(given.job, environ))
    except NothingFoundError as error:
        raise ValueError(f"--from {given.job!r}: no such file, and {error}") from None
    for world in reversed(evidence.worlds):
        if (found := workload_of(world.recordings, evidence.folder.name)) is not None:
            return found
    raise ValueError(
        f"{evidence.folder}: no recording with several steps that reduce gradients; run at least "
        "ten steps on two ranks with horovodrun -np 2, and then --from ''"
    )


def _places(given: argparse.Namespace) -> tuple[Costs, Network]:
    costs, measured = (Costs(), None) if given.costs is None else costs_in(given.costs)
    if given.network is not None or measured is None:
        measured = network_named(given.network or _DEFAULT_NETWORK)
    return costs, measured


def _failures(given: argparse.Namespace, workload: Workload, costs: Costs) -> Failures | None:
    """A commit copies the weights and, as Adam has them, two numbers for each."""
    if given.mtbf is None:
        if given.commit_s is not None or given.recovery_s != _RECOVERY_S:
            raise ValueError("--recovery-s and --commit-s need --mtbf: how often a host fails")
        return None
    commit_s = given.commit_s
    if commit_s is None:
        commit_s = max(3 * workload.size_bytes * costs.byte_s, 1e-9)
    return Failures(given.mtbf * 3600, given.recovery_s, commit_s)


def _cluster(ranks: int, given: argparse.Namespace, network: Network, costs: Costs) -> Cluster:
    if given.hosts is not None:
        hosts, each = given.hosts
        if hosts * each != ranks:
            raise ValueError(f"--hosts {hosts}x{each} are {hosts * each} ranks, not {ranks}")
        return Cluster(hosts, each, network, costs)
    each = min(given.ranks_per_host, ranks)
    if each < 1 or ranks % each:
        raise ValueError(f"{ranks} ranks do not fill hosts of --ranks-per-host {each}")
    return Cluster(ranks // each, each, network, costs)


def as_json(
    workload: Workload, network: Network, found: Sequence[Prediction], advice: Sequence[Advice]
) -> dict[str, Any]:
    """The whole result; seconds and bytes."""
    return {
        "workload": workload.title,
        "gradients": len(workload.gradients),
        "gradient_bytes": workload.size_bytes,
        "alone_s": workload.alone_s,
        "network": asdict(network),
        "predictions": [
            {
                **asdict(each),
                "efficiency": each.efficiency,
                "lasting": each.lasting,
                "samples_per_second": each.samples_per_second,
            }
            for each in found
        ],
        "advice": [{"text": each.text, "gain": each.gain} for each in advice],
    }


def as_text(
    workload: Workload, network: Network, found: Sequence[Prediction], advice: Sequence[Advice]
) -> str:
    """The result for people."""
    megabytes = workload.size_bytes / 1e6
    lines = [
        f"{workload.title}: {len(workload.gradients)} gradients, {megabytes:.1f} MB",
        f"between hosts: {network.name}, {network.bandwidth / 1e9:g} GB/s, "
        f"{network.latency_s * 1e6:g} us",
        "",
        _table(found),
        "stragglers: the slowest rank's computing; exposed: reductions after it; reducing: all",
    ]
    if found[-1].losses is not None:
        lines.append(
            "lasting: the efficiency of steps that no failure takes back; commit: how often"
        )
    if advice:
        lines += ["", f"at {found[-1].ranks} ranks, all together would be faster by"]
        lines += [f"  {each.gain:5.0%}  with {each.text}" for each in advice]
    return printable("\n".join(lines))


def _rows(found: Sequence[Prediction]) -> list[list[str]]:
    """The heads of the table, and its rows."""
    has_samples = any(each.samples for each in found)
    heads = ["ranks", "hosts", "efficiency", "step", "stragglers", "exposed", "reducing"]
    if has_samples:
        heads.append("samples/s")
    if found[-1].losses is not None:
        heads += ["lasting", "commit"]
    rows = [heads]
    for each in found:
        times = (each.step_s, each.stragglers_s, each.exposed_s, each.reducing_s)
        row = [str(each.ranks), str(each.hosts), f"{each.efficiency:.1%}"]
        row += [f"{time_s * 1e3:.1f} ms" for time_s in times]
        if has_samples:
            row.append(f"{each.samples_per_second:,.0f}")
        if each.losses is not None:
            row += [f"{each.lasting:.1%}", f"{each.losses.commit_steps} steps"]
        rows.append(row)
    return rows


def _table(found: Sequence[Prediction]) -> str:
    heads, *rows = _rows(found)
    table: Table = plain_table()
    for title in heads:
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*row)
    file = StringIO()
    plain_console(file=file, width=_WIDTH).print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
