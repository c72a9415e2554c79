"""Which ranks the others wait for: buckets as all ranks saw them.

A bucket begins everywhere as soon as its last rank is there, so who waited least for its begin came
last. That needs no common clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from horovod.trace.report.facts import Lateness

__all__ = ["BucketKey", "culprit", "lateness_of", "named_last"]

BucketKey = tuple[str, int, int]  # world, process set, number
_NOTABLE_US = 50  # what is less than that is no wait
_ENOUGH = 0.9  # of the ranks of a process set, to tell who was last
_MOST = 0.8  # of all that others wait


def lateness_of(
    slacks: Mapping[int, Iterable[tuple[BucketKey, int]]],
) -> dict[int, Lateness]:
    """From the slacks that each process has told, in microseconds, how late each came.

    Buckets that only some processes have told of say nothing.
    """
    by_bucket: dict[BucketKey, dict[int, int]] = defaultdict(dict)
    for process, told in slacks.items():
        for key, slack_us in told:
            by_bucket[key][process] = slack_us
    members: Counter[tuple[str, int]] = Counter()  # as far as can be told
    for (world, process_set, _), of_bucket in by_bucket.items():
        members[world, process_set] = max(members[world, process_set], len(of_bucket))
    compared, last, cost_us = Counter[int](), Counter[int](), Counter[int]()
    for (world, process_set, _), of_bucket in by_bucket.items():
        if len(of_bucket) < max(2, _ENOUGH * members[world, process_set]):
            continue
        compared.update(of_bucket.keys())
        least, second = sorted(of_bucket, key=of_bucket.__getitem__)[:2]
        cost = of_bucket[second] - of_bucket[least]
        if cost >= _NOTABLE_US:
            last[least] += 1
            cost_us[least] += cost
    return {p: Lateness(compared[p], last[p], cost_us[p] / 1e6) for p in compared}


def culprit(lateness: Mapping[int, Lateness]) -> int | None:
    """The process that nearly all waits are for, if there is one."""
    whole = sum(found.cost_s for found in lateness.values())
    worst = max(lateness, key=lambda process: lateness[process].cost_s, default=None)
    return worst if worst is not None and lateness[worst].cost_s > _MOST * whole else None


def named_last(slack_us: int, told: Sequence[tuple[int, int]]) -> int | None:
    """The process for which one bucket waited for ``slack_us`` here, if anybody has told.

    ``told`` are processes with their slacks: the last one had nearly none.
    """
    process, least_us = min(told, key=lambda entry: entry[1], default=(None, 0))
    return process if slack_us >= max(_NOTABLE_US, 10 * least_us) else None
