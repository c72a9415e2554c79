"""Which ranks the others wait for: buckets as all ranks saw them.

A bucket begins everywhere as soon as its last rank is there, so who waited least for its begin came
last. That needs no common clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from horovod.trace.report.facts import Lateness

__all__ = ["BucketKey", "lateness_of", "named_last"]

BucketKey = tuple[str, int, int]  # world, process set, number
_NOTABLE_US = 50  # what is less than that is no wait


def lateness_of(
    slacks: Mapping[int, Iterable[tuple[BucketKey, int]]],
) -> dict[int, Lateness]:
    """From the slacks that each process has told, in microseconds, how late each came.

    Buckets that one process alone has told of say nothing.
    """
    by_bucket: dict[BucketKey, dict[int, int]] = defaultdict(dict)
    for process, told in slacks.items():
        for key, slack_us in told:
            by_bucket[key][process] = slack_us
    compared: dict[int, int] = defaultdict(int)
    last: dict[int, int] = defaultdict(int)
    cost_us: dict[int, int] = defaultdict(int)
    for of_bucket in by_bucket.values():
        if len(of_bucket) < 2:
            continue
        for process in of_bucket:
            compared[process] += 1
        least, second = sorted(of_bucket, key=of_bucket.__getitem__)[:2]
        cost = of_bucket[second] - of_bucket[least]
        if cost >= _NOTABLE_US:
            last[least] += 1
            cost_us[least] += cost
    return {p: Lateness(compared[p], last[p], cost_us[p] / 1e6) for p in compared}


def named_last(
    slow: Mapping[str, Any], late: Mapping[BucketKey, Sequence[tuple[int, int]]]
) -> int | None:
    """The process for which a slow operation waited to begin, if anybody has told of it.

    ``late`` has, by bucket, the processes that came last on their host, with their slacks.
    """
    world, process_set, number = slow["bucket"]
    found = late.get((world, process_set, number), ())
    if not found:
        return None
    process, slack_us = min(found, key=lambda entry: entry[1])
    return process if slow["slack_us"] - slack_us >= _NOTABLE_US else None
