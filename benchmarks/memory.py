"""The idle cost of Horovod: memory, and wake-ups when nothing is submitted.

Two ranks. Memory: proportional set size after allreduces of 64 MB tensors minus that before
``import horovod.torch``; torch and the tensors are loaded both times. Idle: the main thread
computes and submits nothing for some seconds; counted are the context switches of all other
threads, and their time on a core. The worst rank counts, in one run, because there is no noise.
"""

from __future__ import annotations

import argparse
import sys

from command_line import make_parser
from report import OURS, Bar, Table, format_bytes, format_count, print_report
from worker_groups import GroupSpec, open_groups

_RANK_COUNT = 2
_TENSORS = {"tensor_count": 2, "tensor_bytes": 64 * 1024**2}
_MEMORY, _SWITCHES, _ON_CORE = "memory per rank", "wake-ups", "us on a core"
_MEMORY_BAR = Bar(_MEMORY, None, 20e6)
_IDLE_BARS = (Bar(_SWITCHES, None, 0), Bar(_ON_CORE, None, 0))


def main() -> int:
    args = _parse_arguments()
    spec = GroupSpec(OURS, "horovodrun", "none")
    with open_groups([spec], _RANK_COUNT, "memory_probe:MemoryProbe") as (group,):
        group.call("allocate", **_TENSORS)
        before = group.call("pss_bytes")
        group.call("join_and_reduce", iterations=5)
        added = [b - a for a, b in zip(before, group.call("pss_bytes"), strict=True)]
        idle = group.call("idle", seconds=args.idle_s)
    memory = Table("memory beyond torch and the tensors", [OURS], format_bytes, [_MEMORY_BAR])
    memory.rows[_MEMORY] = {OURS: [max(added)]}
    title = f"engine threads during {args.idle_s:g} s with nothing submitted"
    activity = Table(title, [OURS], format_count, _IDLE_BARS)
    activity.rows[_SWITCHES] = {OURS: [max(rank["switches"] for rank in idle)]}
    activity.rows[_ON_CORE] = {OURS: [max(rank["on_core_us"] for rank in idle)]}
    return print_report([memory, activity], args.json)


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--idle-s", type=float, default=5.0, help="how long to watch the idle engine"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
