"""Local steps over a slow link: a transformer of characters, DiLoCo against synchronous training.

Two hosts, which are namespaces of this machine, with one rank and one compute thread each, train
about a million parameters on the help texts that ship with Python. First, on a link without a
limit, all ways train for the same number of samples, and the losses of the agreed models on other
text are compared. Then the link has 100 Mbit/s, and steps are timed: over one period of local
steps, and a few synchronous steps. The share of computing is that of the time in which a rank does
not wait for a collective (``blocked_seconds`` of ``hvd.metrics()``). Needs root.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing

from command_line import make_parser
from local_steps_loop import SYNCHRONOUS, ways
from on_hosts import Network, RanksOnHosts, open_hosts
from report import Bar, Table, format_bytes, format_percent, format_time, print_report
from worker_groups import GroupSpec, WorkerGroup, check_equal, open_groups

_HOST_COUNT = 2
_SPEC = GroupSpec("horovod", "horovodrun", "horovod")
_LOSS = "loss after the same samples"
_STEP = "time of a step"
_SENT = "bytes that a host sends per step"
_SHARE = "share of computing"


def main() -> int:
    args = _parse_arguments()
    names = [SYNCHRONOUS, *ways(args.sync_every)]
    quality = Table("validation loss, 2 x 1", names, "{:.4f}".format)
    link = f"2 x 1, {args.mbit_per_s} Mbit/s"
    times = Table(f"training step, {link}: time", names, format_time)
    traffic = Table(f"training step, {link}: bytes", names, format_bytes)
    bars = [Bar(_SHARE, None, 0.95, is_aim=True, contestant=name) for name in names[1:]]
    shares = Table(f"training step, {link}", names, format_percent, bars, is_more_better=True)
    with (
        open_hosts(_HOST_COUNT) as (network, servers),
        closing(RanksOnHosts(network, servers, 1)) as start,
        open_groups([_SPEC], _HOST_COUNT, "local_steps_loop:LocalStepsLoop", start) as (group,),
    ):
        if args.steps:
            quality.rows[_LOSS] = {name: [_loss(group, name, args)] for name in names}
        for host in network.hosts:
            host.limit_rate(args.mbit_per_s)
        for name in names:
            figures = _step(group, network, name, args)
            for table, row, figure in zip(
                (times, shares, traffic), (_STEP, _SHARE, _SENT), figures, strict=True
            ):
                table.rows.setdefault(row, {})[name] = [figure]
    tables = [quality, times, traffic, shares] if args.steps else [times, traffic, shares]
    return print_report(tables, args.json)


def _loss(group: WorkerGroup, way: str, args: argparse.Namespace) -> float:
    print(f"training: {way}", file=sys.stderr, flush=True)
    group.call("prepare", way=way, sync_every=args.sync_every)
    group.call("train", steps=args.steps)
    losses: Sequence[float] = group.call("validate")
    check_equal(group, losses)
    return losses[0]


def _step(
    group: WorkerGroup, network: Network, way: str, args: argparse.Namespace
) -> tuple[float, float, float]:
    """Seconds per step and share of computing of the slower rank, bytes that a host sends."""
    print(f"timing: {way}", file=sys.stderr, flush=True)
    group.call("prepare", way=way, sync_every=args.sync_every)
    is_local = way != SYNCHRONOUS
    group.call("train", steps=args.sync_every if is_local else 2)  # then fragments are under way
    count = args.sync_every if is_local else args.timed_steps
    before = [host.traffic().sent_bytes for host in network.hosts]
    seconds, waited = max(group.call("train", steps=count))
    after = [host.traffic().sent_bytes for host in network.hosts]
    group.call("finish")
    sent = max(b - a for a, b in zip(before, after, strict=True))
    return seconds / count, 1 - waited / seconds, sent / count


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=300, help="of each way; 0: none, only time")
    parser.add_argument("--sync-every", type=int, default=50, help="local steps in a period")
    parser.add_argument(
        "--timed-steps", type=int, default=10, help="synchronous steps that are timed"
    )
    parser.add_argument("--mbit-per-s", type=int, default=100, help="what each host can send")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
