"""Collectives and training on one CUDA GPU: one rank over NCCL, and two ranks on the same card.

First the floor: the card's copy speed. One rank exchanges nothing, so its sums show the cost of
the engine and NCCL, compared with a loop that does nothing. Two ranks on one card use CUDA IPC, or
host memory: then each rank copies every byte to the host and back over one connection, which takes
at least the bytes divided by the measured bandwidth. Then steps of a model of ResNet-50's size,
against DistributedDataParallel on the same card. At last the same steps of two ranks over NCCL,
which takes each for a host of its own and connects them by TCP: all contestants share this link, so
it compares how they use NCCL, not how fast NCCL is between GPUs.

The contestants of one kind of job are alive together. Each table is printed as soon as it is
measured. Without a GPU it says so and measures nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from command_line import add_names, make_parser, numbers
from gpu_loop import COPIES, COUNTS
from report import (
    OURS,
    Bar,
    Table,
    efficiency_table,
    format_bytes,
    format_count,
    format_time,
    print_table,
    write_json,
)
from worker_groups import (
    GroupSpec,
    WorkerGroup,
    call_all,
    check_equal,
    measure_and_release,
    open_groups,
)

_ALONE = "no communication"
_STAGED = "through the host"
_ON_NCCL, _ON_GLOO, _ON_HOROVOD = "torch on nccl", "torch on gloo", "torch on horovod"
_FLOOR, _STAGED_FLOOR = "floor", "floor through the host"
_COPIED_BYTES = 256 << 20
_COPIES_TITLE = f"copies of {format_bytes(_COPIED_BYTES)}: time"
_SIZES_MB = (1, 16, 256)


class _Session:
    """The tables that were measured so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.sizes_mb: Sequence[int] = args.sizes_mb
        self.tables: list[Table] = []
        self.is_met = True
        self._is_quick, self._json = args.quick, args.json
        self._begin = time.monotonic()

    def measure(self, groups: Sequence[WorkerGroup], label: str) -> dict[str, list[float]]:
        self.tell(f"measuring {label}")
        return measure_and_release(groups, self._is_quick, 0.3, 0.1)

    def show(self, table: Table) -> None:
        self.tables.append(table)
        self.is_met &= print_table(table)
        write_json(self.tables, self._json)

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self._begin:6.1f} s: {text}", file=sys.stderr, flush=True)


_Measure = Callable[[_Session, Sequence[WorkerGroup]], None]


@dataclass(frozen=True)
class _Stage:
    """Contestants that are alive together, and how their tables are measured, by name."""

    rank_count: int
    specs: Sequence[GroupSpec]
    tables: Mapping[str, _Measure]


def main() -> int:
    args = _parse_arguments()
    if reason := _missing():
        print(f"gpu.py: nothing is measured: {reason}", file=sys.stderr)
        return 0
    session = _Session(args)
    for stage in _STAGES:
        wanted = [measure for name, measure in stage.tables.items() if name in args.tables]
        if not wanted:
            continue
        session.tell(f"starting {', '.join(spec.name for spec in stage.specs)}")
        bench = "gpu_loop:GpuLoop"
        with open_groups(stage.specs, stage.rank_count, bench, at_once=True) as groups:
            for measure in wanted:
                measure(session, groups)
    return 0 if session.is_met else 1


def _missing() -> str:
    import torch

    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA"
    return "" if torch.cuda.is_available() else "PyTorch finds no CUDA GPU"


def _measure_copies(session: _Session, groups: Sequence[WorkerGroup]) -> None:
    table = Table(_COPIES_TITLE, [_ALONE], format_time)
    alone = [group for group in groups if group.name == _ALONE]
    for copy in COPIES:
        call_all(alone, "prepare_copy", copy=copy, size_bytes=_COPIED_BYTES)
        table.rows[copy] = session.measure(alone, f"copies {copy}")
    session.show(table)


def _measure_one_rank(session: _Session, groups: Sequence[WorkerGroup]) -> None:
    table = Table("sum on 1 rank: time", [group.name for group in groups], format_time)
    _measure_sums(session, table, groups, 1)
    table.bars = [Bar(row, _ON_NCCL, 1.5, is_aim=True) for row in table.rows]
    session.show(table)


def _measure_two_ranks(session: _Session, groups: Sequence[WorkerGroup]) -> None:
    taking_part = [group for group in groups if group.name != _ALONE]
    names = [*(group.name for group in taking_part), _FLOOR, _STAGED_FLOOR]
    table = Table("sum, 2 ranks on one card: time", names, format_time)
    _measure_sums(session, table, taking_part, 2)
    for copies in session.tables:
        if copies.title == _COPIES_TITLE:
            _add_floors(table, copies, session.sizes_mb)
    largest = f"{max(session.sizes_mb)}MB"
    table.bars = [Bar(largest, _FLOOR, 2.0, is_aim=True)]
    table.bars += [Bar(largest, _STAGED_FLOOR, 2.0, is_aim=True, contestant=_STAGED)]
    table.bars += [Bar(row, peer, 1.0) for row in table.rows for peer in (_STAGED, _ON_GLOO)]
    session.show(table)


def _add_floors(table: Table, copies: Table, sizes_mb: Sequence[int]) -> None:
    on_card, *ways = (copies.median(copy, _ALONE) or 0.0 for copy in COPIES)
    for size_mb in sizes_mb:
        row = table.rows[f"{size_mb}MB"]
        share = (size_mb << 20) / _COPIED_BYTES
        row[_FLOOR] = [2 * 2.5 * share * on_card]
        # Both directions at once, and two ranks in each.
        row[_STAGED_FLOOR] = [2 * share * max(ways)]


def _measure_sums(
    session: _Session, table: Table, groups: Sequence[WorkerGroup], rank_count: int
) -> None:
    for size_mb in session.sizes_mb:
        results = call_all(groups, "prepare_sum", element_count=size_mb << 18)
        for group, sums in zip(groups, results, strict=True):
            if group.name != _ALONE and set(sums) != {rank_count}:
                raise RuntimeError(f"{group.name}: wrong sums of {rank_count} ones: {sums}")
        table.rows[f"{size_mb}MB"] = session.measure(groups, f"sums of {size_mb} MB")


def _measure_steps(
    session: _Session, groups: Sequence[WorkerGroup], *, title: str, peer: str
) -> None:
    """The time of a step, its efficiency, and what the engine counts in it."""
    taking_part = [group for group in groups if group.name != _STAGED]
    names = [group.name for group in taking_part]
    title = f"training step of ResNet-50's size, {title}"
    table = Table(f"{title}: time", names, format_time, [Bar("step", peer, 1.0)])
    session.tell(f"preparing {title}")
    call_all(taking_part, "build_model")
    for group in taking_part:  # in turns: NCCL is slow where several jobs share a card
        sums = group.call("prepare_step")
        if group.name != _ALONE:
            check_equal(group, sums)
    counted = {group.name: group.call("count")[0] for group in taking_part}
    table.rows["step"] = session.measure(taking_part, title)
    session.show(table)
    session.show(efficiency_table(table, _ALONE, ()))
    session.show(_counts_table(title, counted))


def _counts_table(title: str, counted: Mapping[str, Mapping[str, float]]) -> Table:
    names = [name for name, counts in counted.items() if counts]
    table = Table(f"{title}: counts of the engine in a step", names, format_count)
    for what in COUNTS:
        table.rows[what] = {name: [counted[name][what]] for name in names}
    return table


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer and shorter rounds, about 100 s in all")
    add_names(parser, "--tables", [name for stage in _STAGES for name in stage.tables])
    parser.add_argument("--sizes-mb", type=numbers, default=_SIZES_MB)
    return parser.parse_args()


_STAGES = (
    _Stage(
        1,
        (
            GroupSpec(OURS, "horovodrun", "horovod over nccl"),
            GroupSpec(_ON_NCCL, "processes", "nccl"),
            GroupSpec(_ALONE, "processes", "nothing on gpu"),
        ),
        {
            "copies": _measure_copies,
            "one-rank": _measure_one_rank,
            "step-one-rank": partial(_measure_steps, title="1 rank", peer=_ON_NCCL),
        },
    ),
    _Stage(
        2,
        (
            GroupSpec(OURS, "horovodrun", "horovod"),
            GroupSpec(_STAGED, "horovodrun", "horovod through the host"),
            GroupSpec(_ON_GLOO, "processes", "gloo"),
            GroupSpec(_ALONE, "processes", "nothing on gpu"),
        ),
        {
            "two-ranks": _measure_two_ranks,
            "step": partial(_measure_steps, title="2 ranks on one card", peer=_ON_GLOO),
        },
    ),
    _Stage(
        2,
        (
            GroupSpec(OURS, "horovodrun", "horovod over nccl"),
            GroupSpec(_ON_NCCL, "processes", "nccl"),
            GroupSpec(_ON_HOROVOD, "processes", "horovod over nccl for torch"),
            GroupSpec(_ALONE, "processes", "nothing on gpu"),
        ),
        {
            "step-nccl": partial(
                _measure_steps, title="2 ranks on one card over NCCL", peer=_ON_NCCL
            ),
        },
    ),
)


if __name__ == "__main__":
    sys.exit(main())
