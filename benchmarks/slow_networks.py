"""Low-bit allreduces between two hosts: bytes, time and accuracy.

The hosts are namespaces of this machine. "1 Gbit/s" limits what each sends; otherwise only
processors limit the speed. The ranks of the jobs, one for each HOROVOD_LINK_COMPRESSION, are
alive at once and measured in turns, round after round. A figure is the median over rounds of the
slower rank's time per call. Accuracies are those of the digits of scikit-learn, and losses those of
a transformer of characters, after training with ``DistributedOptimizer(compression=...)``, one
figure per seed. Needs root.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from statistics import median

from collectives import Work
from command_line import make_parser
from on_hosts import Network, RanksOnHosts, open_hosts
from report import Bar, Table, format_bytes, format_percent, format_time, print_report
from worker_groups import (
    Commands,
    GroupSpec,
    WorkerGroup,
    check_equal,
    measure_in_turns,
    open_groups,
)

from horovod.core.base.engine_settings import LINK_COMPRESSIONS

_EXACT = LINK_COMPRESSIONS[0]
_LOW_BIT = LINK_COMPRESSIONS[1:]
_SPECS = tuple(GroupSpec(name, name, "horovod") for name in LINK_COMPRESSIONS)
_WORK = Work.parse("64MB")
_MODEL = "8 tensors, 25 M parameters"
_MBIT_PER_S = 1000
_SLOW = "2 x 2, 64 MB, 1 Gbit/s"
_FAST = "2 x 1, 64 MB, no limit"
_TEXT = "2-layer transformer of characters"
_STEP = "2 x 1, step of 25 M parameters, 1 Gbit/s"
_CALLS = 5  # whose bytes are counted
_MOST_ERROR = 1e-4  # of sums of equal numbers


def main() -> int:
    args = _parse_arguments()
    rounds, loop_s = (3, 0.3) if args.quick else (9, 1.0)
    times = Table("time per call", LINK_COMPRESSIONS, format_time)
    sizes = Table("bytes of a call on a host's link", LINK_COMPRESSIONS, format_bytes)
    seeds = range(2 if args.quick else 5)
    losses = Table("validation loss", LINK_COMPRESSIONS, "{:.4f}".format)
    accuracy = Table(
        "accuracy on test digits", LINK_COMPRESSIONS, format_percent, is_more_better=True
    )
    with _jobs(2) as (network, groups):
        _limit(network, _MBIT_PER_S)
        _prepare_sums(groups, 4)
        times.rows[_SLOW] = measure_in_turns(groups, rounds=rounds, loop_s=loop_s)
        sizes.rows[_SLOW] = {group.name: [_bytes_of_a_call(network, group)] for group in groups}
    with _jobs(1) as (network, groups):
        _prepare_sums(groups, 2)
        times.rows[_FAST] = measure_in_turns(groups, rounds=rounds, loop_s=loop_s)
        accuracy.rows["digits"] = _trained(groups, "train_on_digits", seeds)
        losses.rows[_TEXT] = _trained(groups, "train_on_text", seeds)
        _limit(network, _MBIT_PER_S)
        for group in groups:
            check_equal(group, group.call("prepare_step", model=_MODEL))
        times.rows[_STEP] = measure_in_turns(groups, rounds=rounds, loop_s=loop_s)
    sizes.bars = [Bar(_SLOW, _EXACT, 0.27, contestant=name) for name in _LOW_BIT]
    times.bars = [
        Bar(_SLOW, None, 0.165, contestant="int8"),
        Bar(_FAST, _EXACT, 1.1, contestant="int8"),
        Bar(_STEP, _EXACT, 0.35, contestant="int8"),
    ]
    accuracy.bars = [Bar("digits", _EXACT, 0.98, contestant=name) for name in _LOW_BIT]
    spread = _spread(losses.rows[_TEXT][_EXACT])
    losses.bars = [Bar(_TEXT, _EXACT, 1 + spread, contestant=name) for name in _LOW_BIT]
    return print_report([sizes, times, accuracy, losses], args.json)


@contextmanager
def _jobs(ranks_per_host: int) -> Iterator[tuple[Network, Sequence[WorkerGroup]]]:
    """Two hosts, and on them a job for each compression."""
    with (
        open_hosts(2) as (network, servers),
        closing(RanksOnHosts(network, servers, ranks_per_host)) as ranks,
    ):

        def start(level: str, count: int, words: Sequence[str], store: str) -> Commands:
            own = {"HOROVOD_LINK_COMPRESSION": level}
            commands = ranks("horovodrun", count, words, store)
            return [(command, {**environment, **own}) for command, environment in commands]

        count = 2 * ranks_per_host
        loop = "slow_networks_loop:SlowNetworksLoop"
        with open_groups(_SPECS, count, loop, start) as groups:
            yield network, groups


def _limit(network: Network, mbit_per_s: float) -> None:
    for host in network.hosts:
        host.limit_rate(mbit_per_s)


def _prepare_sums(groups: Sequence[WorkerGroup], size: int) -> None:
    counts = {"element_count": _WORK.element_count, "tensor_count": 1}
    for group in groups:
        sums = group.call("prepare_sum", **counts)
        if any(abs(found / size - 1) > _MOST_ERROR for of_rank in sums for found in of_rank):
            raise RuntimeError(f"{group.name}: sums of ones over {size} ranks are {sums}")


def _bytes_of_a_call(network: Network, group: WorkerGroup) -> float:
    """What a host sends; the start of the loop and the barriers are less than a thousandth."""
    host = network.hosts[0]
    before = host.traffic().sent_bytes
    group.call("measure", iterations=_CALLS)
    return (host.traffic().sent_bytes - before) / _CALLS


def _spread(figures: Sequence[float]) -> float:
    """From the least to the largest, as a part of the median."""
    return (max(figures) - min(figures)) / median(figures)


def _trained(
    groups: Sequence[WorkerGroup], training: str, seeds: Sequence[int]
) -> dict[str, list[float]]:
    """The figure of each seed, by group."""
    found: dict[str, list[float]] = {group.name: [] for group in groups}
    for seed in seeds:
        for group in groups:
            print(f"{training} with {group.name}, seed {seed}", file=sys.stderr, flush=True)
            by_rank = group.call(training, seed=seed, compression=group.name)
            check_equal(group, by_rank)
            found[group.name].append(by_rank[0])
    return found


def _parse_arguments() -> argparse.Namespace:
    return make_parser(__doc__, "fewer rounds and seeds").parse_args()


if __name__ == "__main__":
    sys.exit(main())
