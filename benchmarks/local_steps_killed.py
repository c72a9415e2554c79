"""DiLoCo over a slow link while a rank is killed and comes back: stalls, and the loss.

Three hosts, which are namespaces of this machine, train the transformer of ``local_steps.py`` with
one rank each in an elastic job. Between any two hosts are 100 Mbit/s, round trips of 100 ms and
losses. In the second run a rank kills itself in the middle; another takes its place. A stall is the
longest time between two steps of a rank that stays, less the usual time of a step: after the death,
until two ranks go on, and when the new rank joins. Needs root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median

from command_line import make_parser
from on_hosts import Network, SshServers, add_distance, distance_of, long_cable, open_hosts
from report import Bar, Table, format_time, print_report

_HOST_COUNT = 3
_UNDISTURBED, _KILLED = "undisturbed", "a rank is killed"
_LOSS = "validation loss"
_LONGEST_STALL_S = 2.0
_STALLS = ("when it is lost", "when another joins")
_WORKER = Path(__file__).with_name("local_steps_worker.py")
_TIMEOUT_S = 3600.0
# A step of a rank: time, step, ranks of the world.
_Step = tuple[float, int, int]


def main() -> int:
    args = _parse_arguments()
    names = [_UNDISTURBED, _KILLED]
    losses = Table("loss", names, "{:.4f}".format, [Bar(_LOSS, _UNDISTURBED, 1.01, False, _KILLED)])
    stalls = Table("longest stall", names, format_time)
    stalls.bars = [Bar(row, None, _LONGEST_STALL_S, contestant=_KILLED) for row in _STALLS]
    distance = distance_of(args, 2)
    with open_hosts(_HOST_COUNT) as (network, servers), ExitStack() as cables:
        for host in network.hosts:  # a packet passes two cables
            cables.enter_context(long_cable(network, host, distance))
        for name in names:
            killed_after = args.steps // 2 if name == _KILLED else 0
            loss, steps = _train(network, servers, args, killed_after)
            losses.rows.setdefault(_LOSS, {})[name] = [loss]
            if name == _KILLED:
                for row, stall_s in zip(_STALLS, _stalls(steps), strict=True):
                    stalls.rows[row] = {name: [stall_s]}
    return print_report([losses, stalls], args.json)


def _train(
    network: Network, servers: SshServers, args: argparse.Namespace, killed_after: int
) -> tuple[float, list[list[_Step]]]:
    """The loss, and the steps of each rank that has lived to the end."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "horovod.runner.launch", *servers.options]
        words += ["-np", "3", "--min-np", "2", "--blacklist-cooldown-range", "1", "1"]
        words += ["-H", ",".join(f"{host.name}:1" for host in network.hosts)]
        words += [sys.executable, str(_WORKER), folder]
        words += map(str, (args.steps, args.sync_every, killed_after))
        subprocess.run(
            network.hosts[0].command(words),
            check=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        mark = Path(folder) / "killed"
        killed = mark.read_text() if mark.exists() else ""
        logs = [path for path in Path(folder).glob("steps.*") if path.name != f"steps.{killed}"]
        loss = float((Path(folder) / "loss").read_text())
        return loss, [_steps_in(path.read_text()) for path in logs]


def _steps_in(log: str) -> list[_Step]:
    rows = (line.split() for line in log.splitlines())
    return [(float(at), int(step), int(size)) for at, step, size in rows]


def _stalls(by_rank: Sequence[Sequence[_Step]]) -> list[float]:
    """The longest ones at the change to two ranks, and at the change back to three."""
    found = []
    for sizes in ((3, 2), (2, 3)):
        gaps = [
            later[0] - earlier[0] - _usual_s(steps)
            for steps in by_rank
            for earlier, later in pairwise(steps)
            if (earlier[2], later[2]) == sizes
        ]
        if not gaps:
            raise RuntimeError(
                f"no rank has gone from {sizes[0]} ranks to {sizes[1]}: too few steps"
            )
        found.append(max(gaps))
    return found


def _usual_s(steps: Sequence[_Step]) -> float:
    return median(later[0] - earlier[0] for earlier, later in pairwise(steps))


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=512, help="of each run")
    parser.add_argument("--sync-every", type=int, default=128, help="local steps in a period")
    add_distance(parser, 100)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
