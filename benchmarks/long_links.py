"""Sums over a long link: by congestion control, number of connections, and size of blocks.

The two hosts are namespaces of this machine, and a process between them delays and loses packets
(``tests/hosts/support/long_cable.py``). It carries a few hundred Mbit/s. Needs root.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing

from collectives import Work
from command_line import make_parser
from long_links_loop import CONGESTION
from on_hosts import RanksOnHosts, add_distance, distance_of, long_cable, open_hosts
from report import Bar, Table, print_report
from worker_groups import Commands, GroupSpec, open_groups

_CONTROLS, _COUNTS = ("reno", "bbr"), (1, 4, 16)
_BLOCKS_KB = (512, 8192)
_LOOP = "long_links_loop:CollectiveLoop"


def main() -> int:
    args = _parse_arguments()
    names = [f"{control}, {count}" for control in _CONTROLS for count in _COUNTS]
    rates = Table("rate of an allreduce, 2 x 1", names, _format_rate, is_more_better=True)
    distance = distance_of(args)
    with (
        open_hosts(2) as (network, servers),
        closing(RanksOnHosts(network, servers, 1)) as ranks,
        long_cable(network, network.hosts[0], distance),
    ):
        for block_kb in _BLOCKS_KB:
            row = f"{args.size.label}, blocks of {block_kb} KB"
            rates.bars = [*rates.bars, Bar(row, "reno, 1", 2, is_aim=True, contestant="bbr, 1")]
            rates.rows[row] = {
                name: [_bits_per_s(ranks, name, block_kb, args.size)] for name in names
            }
    return print_report([rates], args.json)


def _bits_per_s(ranks: RanksOnHosts, name: str, block_kb: int, size: Work) -> float:
    """Of what each host sends, in the second of two calls."""
    print(f"{name}, blocks of {block_kb} KB", file=sys.stderr, flush=True)
    control, count = name.split(", ")

    def start(launcher: str, rank_count: int, words: Sequence[str], store: str) -> Commands:
        own = {
            CONGESTION: control,
            "HOROVOD_LINK_CONNECTIONS": count,
            "HOROVOD_ALLREDUCE_BLOCK_KB": str(block_kb),
        }
        commands = ranks(launcher, rank_count, words, store)
        return [(command, {**environment, **own}) for command, environment in commands]

    with open_groups([GroupSpec(name, "horovodrun", "horovod")], 2, _LOOP, start) as (group,):
        group.call("prepare_sum", element_count=size.element_count, tensor_count=1)
        seconds = max(group.call("measure", iterations=1))
    return 32 * size.element_count / seconds  # each host sends as many bytes as the tensor has


def _format_rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e6:.1f} Mbit/s"


def _parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--size", type=Work.parse, default="64MB", help="of the tensor")
    add_distance(parser, 1000)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
