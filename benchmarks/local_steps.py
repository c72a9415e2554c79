"""Local steps over a slow link: a transformer of characters, DiLoCo against synchronous training.

Two hosts, which are namespaces of this machine, with one rank and one compute thread each, train
about 10 million parameters on the help texts that ship with Python. First, on a link without a
limit, all ways go on from one model that was trained synchronously for a while, as the authors of
DiLoCo did, for the same number of samples; the losses of the agreed models on other text are
compared. Then the link has 100 Mbit/s, round trips of 100 ms and losses, and steps are
timed: over one period of local steps, and a few synchronous steps. The share of computing is that
of the time in which a rank does not wait for a collective (``blocked_seconds`` of
``hvd.metrics()``). Needs root.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from command_line import make_parser
from local_steps_loop import SYNCHRONOUS, ways
from on_hosts import (
    Network,
    RanksOnHosts,
    SshServers,
    add_distance,
    distance_of,
    long_cable,
    open_hosts,
)
from report import Bar, Table, format_percent, format_time, print_report
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
    local = names[1:]
    tables = _Tables(names, local, f"{args.mbit_per_s} Mbit/s, {args.delay_ms} ms")
    distance = distance_of(args)
    with open_hosts(_HOST_COUNT) as (network, servers):
        if args.steps:
            with _open_group(network, servers) as group:
                _warm_up(group, args)
                for name in names:
                    tables.quality.rows.setdefault(_LOSS, {})[name] = [_loss(group, name, args)]
        # Ranks suit their connections to the delay that they find when they connect.
        with (
            long_cable(network, network.hosts[0], distance),
            _open_group(network, servers) as group,
        ):
            for name in names:
                tables.add(name, _step(group, network, name, args))
    return print_report(tables.all, args.json)


@contextmanager
def _open_group(network: Network, servers: SshServers) -> Iterator[WorkerGroup]:
    with (
        closing(RanksOnHosts(network, servers, 1)) as start,
        open_groups([_SPEC], _HOST_COUNT, "local_steps_loop:LocalStepsLoop", start) as (group,),
    ):
        yield group


class _Tables:
    """The results and their bars."""

    def __init__(self, names: Sequence[str], local: Sequence[str], link: str) -> None:
        title = f"training step, 2 x 1, {link}"
        self.quality = Table("validation loss, 2 x 1", names, "{:.4f}".format)
        self.quality.bars = [Bar(_LOSS, SYNCHRONOUS, 1.01, contestant=name) for name in local]
        self._times = Table(f"{title}: time", names, format_time)
        self._traffic = Table(f"{title}: bytes", names, _format_kilobytes)
        self._traffic.bars = [
            Bar(_SENT, SYNCHRONOUS, 1 / factor, is_aim=factor > 400, contestant=name)
            for name in local
            for factor in (400, 1000)
        ]
        self._shares = Table(title, names, format_percent, is_more_better=True)
        self._shares.bars = [Bar(_SHARE, None, 0.95, contestant=name) for name in local[1:]]

    @property
    def all(self) -> list[Table]:
        return [self.quality, self._times, self._traffic, self._shares]

    def add(self, name: str, figures: tuple[float, float, float]) -> None:
        """What ``_step`` has returned."""
        rows = ((self._times, _STEP), (self._shares, _SHARE), (self._traffic, _SENT))
        for (table, row), figure in zip(rows, figures, strict=True):
            table.rows.setdefault(row, {})[name] = [figure]


def _format_kilobytes(count: float) -> str:
    return f"{count / 1e3:.4g} kB"


def _warm_up(group: WorkerGroup, args: argparse.Namespace) -> None:
    """Train the model from which all ways go on."""
    print("training: the first steps", file=sys.stderr, flush=True)
    group.call("prepare", way=SYNCHRONOUS, sync_every=args.sync_every)
    group.call("train", steps=args.warm_steps)
    group.call("keep")


def _loss(group: WorkerGroup, way: str, args: argparse.Namespace) -> float:
    print(f"training: {way}", file=sys.stderr, flush=True)
    group.call("prepare", way=way, sync_every=args.sync_every, steps=args.steps)
    for begin in range(0, args.steps, args.sync_every):
        group.call("train", steps=min(args.sync_every, args.steps - begin))
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
    group.call("train", steps=args.sync_every if is_local else 1)  # then fragments are under way
    count = args.sync_every if is_local else args.timed_steps
    before = [host.traffic().sent_bytes for host in network.hosts]
    seconds, waited = max(group.call("train", steps=count))
    after = [host.traffic().sent_bytes for host in network.hosts]
    group.call("finish")
    sent = max(b - a for a, b in zip(before, after, strict=True))
    return seconds / count, 1 - waited / seconds, sent / count


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=640, help="of each way; 0: none, only time")
    parser.add_argument("--warm-steps", type=int, default=512, help="synchronous ones before them")
    parser.add_argument("--sync-every", type=int, default=128, help="local steps in a period")
    parser.add_argument(
        "--timed-steps", type=int, default=3, help="synchronous steps that are timed"
    )
    add_distance(parser, 100)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
