"""``BalancedSampler`` where one rank is slow: samples per second, against equal batches.

Two ranks with one compute thread each; the last one computes everything three times. Ideal is what
both ranks do together when each works alone, without communication, at the same time. The ways are
measured in turns in one run; figures are medians over rounds.
"""

from __future__ import annotations

import sys

from balance_loop import BATCH, SLOW
from command_line import make_parser
from report import Bar, Table, print_report
from worker_groups import GroupSpec, WorkerGroup, open_groups

_WAYS = ("alone", "equal", "balanced")
_RANK_COUNT = 2
_ROW = f"one of {_RANK_COUNT} ranks {SLOW} x slower"
_OF_IDEAL = 0.9


def main() -> int:
    args = make_parser(__doc__, "fewer and shorter rounds").parse_args()
    rounds, iterations = (3, 20) if args.quick else (9, 60)
    table = Table(
        "share of the ideal samples per second",
        _WAYS[1:],
        lambda share: f"{100 * share:.1f} %",
        [Bar(_ROW, None, _OF_IDEAL, contestant="balanced")],
        is_more_better=True,
    )
    specs = [GroupSpec(way, "horovodrun", "horovod") for way in _WAYS]
    with open_groups(specs, _RANK_COUNT, "balance_loop:BalanceLoop") as groups:
        for group in groups:
            group.call("prepare", way=group.name)
        shares: dict[str, list[float]] = {way: [] for way in _WAYS[1:]}
        for _ in range(rounds):
            rates = {group.name: _samples_per_s(group, iterations) for group in groups}
            for way, found in shares.items():
                found.append(rates[way] / rates["alone"])
        table.rows[_ROW] = shares
    return print_report([table], args.json)


def _samples_per_s(group: WorkerGroup, iterations: int) -> float:
    times = group.call("measure", iterations=iterations)
    if group.name == "alone":
        return sum(BATCH / seconds for seconds in times)
    return BATCH * _RANK_COUNT / max(times)


if __name__ == "__main__":
    sys.exit(main())
