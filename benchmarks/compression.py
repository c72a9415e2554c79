"""Bytes and time of a step with ``compression=`` none, fp16, bf16, powersgd and topk.

Two ranks on one host, one compute thread each, float32 gradients. A step only compresses, reduces
and writes back the gradients of a model. All contestants' ranks are alive at
once and are measured in turns, round after round; a figure is the median over rounds of the slowest
rank's time per step. The last table is calculated: below this bandwidth between two hosts the saved
bytes outweigh the time of compressing. It ignores latency and overlap.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from command_line import add_labels, make_parser
from compression_loop import GRADIENT_SETS
from report import Table, format_bytes, format_time, print_report
from worker_groups import GroupSpec, WorkerGroup, measure_and_release, open_groups

_PLAIN = "none"
_NAMES = (_PLAIN, "fp16", "bf16", "powersgd", "topk")
_RANK_COUNT = 2


def main() -> int:
    args = _parse_arguments()
    sizes = Table("bytes that a rank submits per step", _NAMES, format_bytes)
    times = Table("time per step, 2 ranks of one host", _NAMES, format_time)
    specs = [GroupSpec(name, "horovodrun", "horovod") for name in _NAMES]
    with open_groups(specs, _RANK_COUNT, "compression_loop:CompressionLoop") as groups:
        for label in args.set:
            print(f"measuring {label}", file=sys.stderr, flush=True)
            sizes.rows[label] = _prepare(groups, label)
            times.rows[label] = measure_and_release(groups, args.quick, 0.3, 0.1)
    return print_report([sizes, times, _worthwhile(sizes, times)], args.json)


def _prepare(groups: Sequence[WorkerGroup], label: str) -> dict[str, list[float]]:
    sizes = {}
    for group in groups:
        counts = group.call("prepare", gradient_set=label, compression=group.name)
        if len(set(counts)) != 1:
            raise RuntimeError(f"{group.name}: ranks sent different numbers of bytes: {counts}")
        sizes[group.name] = [float(counts[0])]
    return sizes


def _worthwhile(sizes: Table, times: Table) -> Table:
    """Bits per second of a link at which the time saved equals the time lost.

    With two hosts, an allreduce sends each byte over the link once in each direction, and so does
    an allgather.
    """
    names = [name for name in _NAMES if name != _PLAIN]
    table = Table("pays below this bandwidth of the link", names, _format_bandwidth)
    for label in sizes.rows:
        table.rows[label] = {}
        for name in names:
            saved = _difference(sizes, label, name)
            lost = -_difference(times, label, name)
            table.rows[label][name] = [8 * saved / lost if lost > 0 else float("inf")]
    return table


def _difference(table: Table, label: str, name: str) -> float:
    """The plain figure less the compressed one."""
    return (table.median(label, _PLAIN) or 0.0) - (table.median(label, name) or 0.0)


def _format_bandwidth(bits_per_s: float) -> str:
    return "any" if bits_per_s == float("inf") else f"{bits_per_s / 1e9:.1f} Gbit/s"


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer and shorter rounds")
    add_labels(parser, "--set", list(GRADIENT_SETS))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
