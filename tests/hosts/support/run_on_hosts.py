"""Run a command on ranks of virtual hosts; output as ``horovodrun`` prints it.

    python tests/hosts/support/run_on_hosts.py --ranks 2,1 python examples/pytorch/digits.py

starts three ranks, two of them on the first of two hosts. Needs root. The exit status is that of
the first rank that failed; all others are ended then.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from network import Network, missing, plain_cabling
from ranks import Job, Rank

_PATIENCE_S = 10.0


def main() -> int:
    args = _parse_arguments()
    if missing():
        sys.exit(f"run_on_hosts: {missing()}")
    with Network(plain_cabling(len(args.ranks), ipv6=True)) as network:
        for host in network.hosts:
            if args.rate_mbit:
                host.limit_rate(args.rate_mbit)
            if args.loss_percent:
                host.lose_packets(args.loss_percent)
        with Job(network.hosts, args.ranks, args.command) as job:
            return _watch(job)


def _watch(job: Job) -> int:
    """Print lines as they come until all ranks have ended, or some time after one failed."""
    printers = [_Printer(rank) for rank in job.ranks]
    deadline = float("inf")
    while True:
        statuses = [rank.poll() for rank in job.ranks]
        for printer in printers:
            printer.print_news()
        failed = [status for status in statuses if status]
        if None not in statuses or time.monotonic() > deadline:
            sys.stderr.write(job.store.reports)
            return abs(failed[0]) if failed else 0
        if failed and deadline == float("inf"):
            deadline = time.monotonic() + _PATIENCE_S
        time.sleep(0.02)


class _Printer:
    """Prints what a rank has written since the last time."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._printed = [0, 0]

    def print_news(self) -> None:
        texts = (self._rank.output, self._rank.errors)
        streams = ((sys.stdout, "stdout"), (sys.stderr, "stderr"))
        for index, (text, (stream, name)) in enumerate(zip(texts, streams, strict=True)):
            end = text.rfind("\n") + 1
            for line in text[self._printed[index] : end].splitlines():
                print(f"[{self._rank.number}]<{name}>:{line}", file=stream, flush=True)
            self._printed[index] = max(end, self._printed[index])


def _parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--ranks",
        type=lambda text: [int(n) for n in text.split(",")],
        default=[1, 1],
        help="ranks of each host, separated by commas; default: 1,1",
    )
    parser.add_argument("--rate-mbit", type=float, help="limit of what each host can send")
    parser.add_argument("--loss-percent", type=int, help="share of packets that vanish")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(words)
    if not args.command:
        parser.error("no command")
    return args


if __name__ == "__main__":
    sys.exit(main())
