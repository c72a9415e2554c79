"""The ranks that others wait for, from buckets that all ranks have recorded.

A bucket begins on all ranks when its last rank is ready. So the rank that waited least for the
begin came last; that needs no common clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from horovod.trace.report.facts import Lateness

BucketKey = tuple[str, int, int]  # world, process set, number
_NOTABLE_US = 50  # shorter times are no waits
_ENOUGH = 0.9  # the share of a process set's ranks that determines the last one
_MOST = 0.8  # the share of all waits that makes a culprit


def lateness_of(
    slacks: Mapping[int, Iterable[tuple[BucketKey, int]]],
) -> dict[int, Lateness]:
    """The lateness of each process, from the slacks that processes have recorded, in us.

    Buckets that only some processes have recorded are left out.
    """
    by_bucket: dict[BucketKey, dict[int, int]] = defaultdict(dict)
    for process, told in slacks.items():
        for key, slack_us in told:
            by_bucket[key][process] = slack_us
    members: Counter[tuple[str, int]] = Counter()  # as far as known
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
    """The process that causes nearly all waits, if there is one."""
    whole = sum(found.cost_s for found in lateness.values())
    worst = max(lateness, key=lambda process: lateness[process].cost_s, default=None)
    return worst if worst is not None and lateness[worst].cost_s > _MOST * whole else None


def named_last(slack_us: int, slacks: Sequence[tuple[int, int]]) -> int | None:
    """The process that a bucket waited for during ``slack_us``; None if it is not known.

    ``slacks`` are the known processes with their slacks: the last one had nearly none.
    """
    process, least_us = min(slacks, key=lambda entry: entry[1], default=(None, 0))
    return process if slack_us >= max(_NOTABLE_US, 10 * least_us) else None
