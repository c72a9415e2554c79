"""Backend ``horovod`` of torch.distributed against Gloo and against ``hvd``: operations and steps.

Two ranks with one compute thread each. Operations are called as a program does, by
``dist.all_reduce`` and ``dist.send``/``dist.recv``; a message is half of a ping-pong. Steps are
SGD with momentum on random data: DistributedDataParallel on models of ``training.py``, and FSDP2 on
a transformer with 25 M parameters. The same step without communication runs on the same number of
busy cores: efficiency is its time divided by the step's time. "ddp alone" is DDP whose hook reduces
nothing: no backend can make its step shorter. "bucket views" is DDP on ours with
``gradient_as_bucket_view``. All contestants' ranks are alive at
once and are measured in turns, round after round; a figure is the median over rounds of the slowest
rank's time.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from command_line import add_labels, make_parser
from ddp_loop import FSDP2, OPERATIONS, STEPS
from report import OURS, Bar, Table, efficiency_table, format_time, print_report
from worker_groups import GroupSpec, WorkerGroup, check_equal, measure_and_release, open_groups

_HVD, _GLOO, _ALONE, _NOTHING, _VIEWS = "hvd", "gloo", "alone", "ddp alone", "bucket views"
_SPECS = (
    GroupSpec(OURS, "processes", "ddp on horovod"),
    GroupSpec(_VIEWS, "processes", "ddp with views"),
    GroupSpec(_GLOO, "processes", "ddp on gloo"),
    GroupSpec(_HVD, "horovodrun", "horovod"),
    GroupSpec(_ALONE, "processes", "ddp alone"),
    GroupSpec(_NOTHING, "processes", "ddp without communication"),
)
_RANK_COUNT = 2
_OPERATION_BARS = (
    Bar("all_reduce 4B", None, 15e-6),
    Bar("all_reduce 64MB", _HVD, 1.05),
    Bar("send/recv 4B", None, 10e-6),
    Bar("send/recv 64MB", _ALONE, 1.3),
)
_STEP_BARS = (*(Bar(model, _HVD, 1.05) for model in STEPS), Bar(FSDP2, _GLOO, 0.75))
_EFFICIENCY_BARS = tuple(
    Bar(model, None, bar) for model, bar in zip(STEPS, (0.90, 0.85), strict=True)
)


# FSDP allocates and frees whole layers. Where a system is slow to give memory, that would be all
# that is measured: so processes keep what they have once got, for all contestants.
_KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


def main() -> int:
    args = _parse_arguments()
    os.environ.update(_KEPT_MEMORY)
    names = [spec.name for spec in _SPECS]
    operations = Table("operations, 2 ranks: time per call", names, format_time, _OPERATION_BARS)
    steps = Table("training step, 2 ranks: time", names, format_time, _STEP_BARS)
    with open_groups(_SPECS, _RANK_COUNT, "ddp_loop:DdpLoop") as groups:
        for work in args.work:
            table, method = (
                (operations, "prepare_operation") if work in OPERATIONS else (steps, "prepare_step")
            )
            table.rows[work] = _measure(groups, method, work, args.quick)
    efficiency = efficiency_table(steps, _ALONE, _EFFICIENCY_BARS)
    return print_report([operations, steps, efficiency], args.json)


def _measure(
    groups: Sequence[WorkerGroup], method: str, work: str, is_quick: bool
) -> dict[str, list[float]]:
    print(f"measuring {work}", file=sys.stderr, flush=True)
    taking_part = []
    for group in groups:
        sums = group.call(method, work=work)
        if None in sums:  # the contestant has no such operation
            continue
        if group.name not in (_ALONE, _NOTHING):
            check_equal(group, sums)
        taking_part.append(group)
    loop_s, quick_loop_s = (0.3, 0.1) if work in OPERATIONS else (1.0, 0.4)
    return measure_and_release(taking_part, is_quick, loop_s, quick_loop_s)


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "fewer and shorter rounds")
    add_labels(parser, "--work", [*OPERATIONS, *STEPS, FSDP2])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
