"""What ours does at 8 to 100,000 ranks: the tables of docs/scale.md, from ``horovod.simulate``.

Steps come from the model. What a start costs is computed from what benchmarks/rendezvous.py and
benchmarks/launch_hosts.py have measured on one machine: the constants below.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from command_line import make_parser

from horovod.simulate import (
    Cluster,
    Failures,
    Options,
    Workload,
    network_named,
    of_model,
    predict,
)

_RANKS = (8, 64, 512, 4_096, 32_768, 100_000)
_PER_HOST = 8
_MOST_HOSTS = 1_000_000
_NETWORK = network_named("100gbit-tcp")
_JITTER = 0.02
_BATCH = 32
# Samples per second of one device: a V100 in float32 (benchmarks/simulated.py has the sources), and
# about 20 TFLOP/s for the two others.
_RATES = {
    "resnet50": 405.0,
    "resnet101": 220.0,
    "inception3": 259.0,
    "vgg16": 282.0,
    "bert-large": 20.0,
    "gpt2": 25.0,
}
_STEPS = 20

# Of benchmarks/rendezvous.py: seconds of a processor, and bytes that a rank takes from the store.
_DECODE_S, _LINK_END_S = 30e-6, 1e-3  # what another rank says; one end of a connection
_STORE_BYTE_S, _STORE_REQUEST_S, _REQUESTS = 1 / 130e6, 73e-6, 20
_BYTES_OF_A_RANK, _BYTES_BEFORE = 38, 700  # of each other rank, packed and as before
_SSH_S = 0.16  # of benchmarks/launch_hosts.py, for each host
_CORES, _FAN_OUT = 16, 32
_MOST_START_S, _MOST_LINKS = 60.0, 65_536
_LEAST = 0.8
_MTBF_S, _RECOVERY_S, _FAST_RECOVERY_S, _COMMIT_S = 5000 * 3600.0, 35.0, 5.0, 0.05


def main() -> int:
    make_parser(__doc__).parse_args()
    print("\n\n".join("\n".join(table) for table in tables()))
    return 0


def tables() -> Iterator[list[str]]:
    """All tables of the page, as lines of Markdown."""
    for algorithm in ("horovod", "torus", "tree"):
        heads = [f"`{algorithm}`", *(f"{ranks:,}" for ranks in _RANKS)]
        rows = [
            [name, *(f"{_efficiency(workload, ranks, algorithm):.0%}" for ranks in _RANKS)]
            for name, workload in _workloads()
        ]
        yield _markdown(heads, rows)
    heads = ["part", "limit", "ranks", "change", "ranks then", "factor"]
    yield _markdown(heads, [_row(*limit) for limit in _limits()])


def _workloads() -> Iterator[tuple[str, Workload]]:
    for name, rate in _RATES.items():
        yield name, of_model(name, _BATCH, rate)


def _efficiency(
    workload: Workload, ranks: int, algorithm: str, failures: Failures | None = None
) -> float:
    cluster = Cluster(ranks // _PER_HOST, _PER_HOST, _NETWORK)
    options = Options(algorithm=algorithm)
    return predict(workload, cluster, options, _JITTER, _STEPS, failures).lasting


_Limit = tuple[str, str, Callable[[int], bool], str, Callable[[int], bool]]


def _limits() -> Iterator[_Limit]:
    """Part, its limit, whether a number of hosts is within it, a change, and the same with it."""
    workload = of_model("resnet50", _BATCH, _RATES["resnet50"])

    def is_fast(algorithm: str) -> Callable[[int], bool]:
        return lambda hosts: _efficiency(workload, hosts * _PER_HOST, algorithm) >= _LEAST

    def lasts(recovery_s: float) -> Callable[[int], bool]:
        failures = Failures(_MTBF_S, recovery_s, _COMMIT_S)
        return lambda hosts: _useful(workload, hosts, failures) >= _LEAST

    start = f"{_MOST_START_S:g} s"
    part = f"ResNet-50: {_LEAST:.0%} efficiency"
    exchange = "exchange of each host with each"
    yield exchange, part, is_fast("horovod"), "rows and columns of hosts", is_fast("torus")
    yield exchange, part, is_fast("horovod"), "trees of hosts, as NCCL's", is_fast("tree")
    values = "the store's values for all ranks"
    packed = _reads_in_time(_BYTES_OF_A_RANK, 1)
    yield values, start, _reads_in_time(_BYTES_BEFORE, 1), "they are packed (done)", packed
    one = "one rank of a host reads"
    yield values, start, packed, one, _reads_in_time(_BYTES_OF_A_RANK, _PER_HOST)
    yield (
        "processor time to connect a rank",
        start,
        lambda hosts: _connect_s(hosts, hosts - 1) <= _MOST_START_S,
        "links in rows and columns only",
        lambda hosts: _connect_s(hosts, _near(hosts)) <= _MOST_START_S,
    )
    yield (
        "descriptors of a host's first rank",
        f"{_MOST_LINKS:,}",
        lambda hosts: 2 * hosts <= _MOST_LINKS,
        "links in rows and columns only",
        lambda hosts: 2 * _near(hosts) <= _MOST_LINKS,
    )
    yield (
        f"the launcher's ssh, {_CORES} cores",
        start,
        lambda hosts: hosts * _SSH_S / _CORES <= _MOST_START_S,
        f"a tree of ssh, {_FAN_OUT} each",
        lambda hosts: _levels(hosts) * _FAN_OUT * _SSH_S / _CORES <= _MOST_START_S,
    )
    lost = f"{_LEAST:.0%} of the time is kept"
    text = f"recovery in {_FAST_RECOVERY_S:g} s"
    yield "hosts that fail", lost, lasts(_RECOVERY_S), text, lasts(_FAST_RECOVERY_S)


def _useful(workload: Workload, hosts: int, failures: Failures) -> float:
    cluster = Cluster(hosts, _PER_HOST, _NETWORK)
    found = predict(workload, cluster, Options(algorithm="tree"), 0.0, 1, failures)
    return 0.0 if found.losses is None else found.losses.useful


def _reads_in_time(value_bytes: int, readers_each: int) -> Callable[[int], bool]:
    def is_in_time(hosts: int) -> bool:
        ranks = hosts * _PER_HOST
        readers = ranks / readers_each
        served_s = readers * ranks * value_bytes * _STORE_BYTE_S
        return served_s + readers * _REQUESTS * _STORE_REQUEST_S <= _MOST_START_S

    return is_in_time


def _connect_s(hosts: int, peers: float) -> float:
    """Of a host's first rank, which has a link for news to each peer, too."""
    return hosts * _PER_HOST * _DECODE_S + 2 * peers * _LINK_END_S


def _near(hosts: int) -> float:
    """The hosts in the same row or column."""
    return float(2 * (hosts**0.5 - 1))


def _levels(hosts: int) -> int:
    levels, reached = 1, _FAN_OUT
    while reached < hosts:
        levels, reached = levels + 1, reached * _FAN_OUT
    return levels


def _row(
    part: str,
    limit: str,
    is_within: Callable[[int], bool],
    change: str,
    is_within_then: Callable[[int], bool],
) -> list[str]:
    now, then = _most_hosts(is_within), _most_hosts(is_within_then)
    factor = _shown_factor(then, now)
    return [part, limit, _shown(now), change, _shown(then), factor]


def _most_hosts(is_within: Callable[[int], bool]) -> int:
    """The largest number of hosts that is within a limit, by halving."""
    if is_within(_MOST_HOSTS):
        return _MOST_HOSTS
    low, high = 1, _MOST_HOSTS
    while high - low > 1 + low // 100:
        middle = (low + high) // 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low


def _shown_factor(then: int, now: int) -> str:
    over = "over " if then == _MOST_HOSTS else ""
    return f"{over}{float(f'{then / now:.2g}'):,g}"


def _shown(hosts: int) -> str:
    """Ranks, to two digits."""
    text = f"{float(f'{hosts * _PER_HOST:.2g}'):,.0f}"
    return f"over {text}" if hosts == _MOST_HOSTS else text


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(cells)} |".replace("| --- ", "|---") for cells in lines]


if __name__ == "__main__":
    sys.exit(main())
