"""Collectives and training on one CUDA GPU: one rank over NCCL, and two ranks on the same card.

First the floor: the card's copy speed. One rank exchanges nothing, so its sums show the cost of
the engine and NCCL, compared with a loop that does nothing. Two ranks on one card use CUDA IPC, or
host memory: then each rank copies every byte to the host and back over one connection, which takes
at least the bytes divided by the measured bandwidth. Then steps of a model of ResNet-50's size,
against DistributedDataParallel on the same card. Without a GPU it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from command_line import make_parser, numbers
from gpu_loop import COPIES
from report import OURS, Bar, Table, format_bytes, format_percent, format_time, print_report
from worker_groups import (
    Commands,
    GroupSpec,
    WorkerGroup,
    check_equal,
    commands_here,
    measure_and_release,
    open_groups,
)

_NOTHING = "nothing"
_FLOOR = "floor"
_ALONE = "no communication"
_COPIED_BYTES = 256 << 20
_SIZES_MB = (1, 16, 256)
_ONE = (
    GroupSpec(OURS, "horovodrun", "horovod"),
    GroupSpec("nccl", "processes", "nccl"),
    GroupSpec(_NOTHING, "processes", "idle"),
)
_STAGED = "through the host"
_STAGED_FLOOR = "floor through the host"
_TWO = (
    GroupSpec(OURS, "horovodrun", "horovod"),
    GroupSpec(_STAGED, "horovodrun staged", "horovod"),
    GroupSpec("gloo", "processes", "gloo"),
)


def main() -> int:
    args = _parse_arguments()
    if reason := _missing():
        print(f"gpu.py: nothing is measured: {reason}", file=sys.stderr)
        return 0
    copies = _measure_copies(args.quick)
    tables = [
        copies,
        _measure_one_rank(args.sizes_mb, args.quick),
        _measure_two_ranks(args.sizes_mb, args.quick, copies),
        _measure_steps(1, ("nccl", "alone"), args.quick),
        _measure_steps(2, ("gloo", "alone"), args.quick),
    ]
    return print_report(tables, args.json)


def _missing() -> str:
    import torch

    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA"
    return "" if torch.cuda.is_available() else "PyTorch finds no CUDA GPU"


def _measure_copies(is_quick: bool) -> Table:
    title = f"copies of {format_bytes(_COPIED_BYTES)}: time"
    table = Table(title, [_FLOOR], format_time)
    with open_groups([GroupSpec(_FLOOR, "processes", "idle")], 1, "gpu_loop:CopyLoop") as groups:
        for copy in COPIES:
            groups[0].call("prepare", copy=copy, size_bytes=_COPIED_BYTES)
            table.rows[copy] = _measure(groups, copy, is_quick)
    return table


def _measure_one_rank(sizes_mb: Sequence[int], is_quick: bool) -> Table:
    table = Table("sum on 1 rank: time", [spec.name for spec in _ONE], format_time)
    with open_groups(_ONE, 1, "gpu_loop:SumLoop") as groups:
        _measure_sums(table, groups, sizes_mb, is_quick)
    table.bars = [Bar(row, "nccl", 1.5, is_aim=True) for row in table.rows]
    return table


def _measure_two_ranks(sizes_mb: Sequence[int], is_quick: bool, copies: Table) -> Table:
    names = [spec.name for spec in _TWO]
    title = "sum, 2 ranks on one card: time"
    table = Table(title, [*names, _FLOOR, _STAGED_FLOOR], format_time)
    with open_groups(_TWO, 2, "gpu_loop:SumLoop", _start) as groups:
        _measure_sums(table, groups, sizes_mb, is_quick)
    on_card, *ways = (copies.median(copy, _FLOOR) or 0.0 for copy in COPIES)
    for size_mb in sizes_mb:
        row = table.rows[f"{size_mb}MB"]
        share = (size_mb << 20) / _COPIED_BYTES
        row[_FLOOR] = [2 * 2.5 * share * on_card]
        # Both directions at once, and two ranks in each.
        row[_STAGED_FLOOR] = [2 * share * max(ways)]
    largest = f"{max(sizes_mb)}MB"
    table.bars = [Bar(largest, _FLOOR, 2.0, is_aim=True)]
    table.bars += [Bar(largest, _STAGED_FLOOR, 2.0, is_aim=True, contestant=_STAGED)]
    table.bars += [Bar(row, peer, 1.0) for row in table.rows for peer in (_STAGED, "gloo")]
    return table


def _start(launcher: str, rank_count: int, words: Sequence[str], store: str) -> Commands:
    """As ``commands_here``; a staged job does not use CUDA IPC."""
    name, _, way = launcher.partition(" ")
    settings = {"HOROVOD_GPU_OPERATIONS": "host"} if way == "staged" else {}
    commands = commands_here(name, rank_count, words, store)
    return [(command, {**environment, **settings}) for command, environment in commands]


def _measure_sums(
    table: Table, groups: Sequence[WorkerGroup], sizes_mb: Sequence[int], is_quick: bool
) -> None:
    for size_mb in sizes_mb:
        for group in groups:
            group.call("prepare", element_count=size_mb << 18)
        table.rows[f"{size_mb}MB"] = _measure(groups, f"{size_mb}MB", is_quick)


def _measure_steps(ranks: int, others: Sequence[str], is_quick: bool) -> Table:
    names = {"alone": _ALONE, "nccl": "ddp on nccl", "gloo": "ddp on gloo"}
    specs = [GroupSpec(OURS, "horovodrun", "horovod")]
    specs += [GroupSpec(names[other], "processes", other) for other in others]
    title = f"training step of ResNet-50's size, {ranks} ranks on one card: time"
    table = Table(title, [spec.name for spec in specs], format_time)
    with open_groups(specs, ranks, "gpu_loop:StepLoop") as groups:
        for group in groups:
            sums = group.call("prepare")
            if group.name != _ALONE:
                check_equal(group, sums)
        table.rows["step"] = _measure(groups, f"steps of {ranks} ranks", is_quick)
    table.bars = [Bar("step", names[others[0]], 1.0)]
    alone, ours = (table.median("step", name) for name in (_ALONE, OURS))
    if alone and ours:
        print(f"{title}: efficiency {format_percent(alone / ours)}", file=sys.stderr)
    return table


def _measure(groups: Sequence[WorkerGroup], label: str, is_quick: bool) -> dict[str, list[float]]:
    print(f"measuring {label}", file=sys.stderr, flush=True)
    return measure_and_release(groups, is_quick, 0.3, 0.3)


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer rounds")
    parser.add_argument("--sizes-mb", type=numbers, default=_SIZES_MB)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
