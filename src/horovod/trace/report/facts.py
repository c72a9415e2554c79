"""The contents of a report: values that ``merge`` makes and ``page`` renders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Job:
    """What the launcher knows. Times are seconds since 1970.

    ``messages`` has the launcher's messages with their times; ``job_id`` is for ``--doctor``.
    ``findings`` are the doctor's; None if it had nothing to look at.
    """

    command: str
    begin_s: float
    end_s: float
    status: int
    outcome: str
    messages: Sequence[tuple[float, str]] = ()
    job_id: str = ""
    findings: Sequence[Advice] | None = None


class Advice(NamedTuple):
    """A finding of the doctor: ``severity`` is ``problem``, ``advice`` or ``note``."""

    severity: str
    text: str
    advice: str = ""
    lines: Sequence[str] = ()


class Lateness(NamedTuple):
    """How one rank held up others in the ``compared`` buckets.

    It came last in ``last`` of them, which cost each other rank ``cost_s`` in total.
    """

    compared: int = 0
    last: int = 0
    cost_s: float = 0.0


@dataclass(frozen=True)
class Row:
    """One process. Lists have a value for each column of time, None if it is not known.

    ``step_s`` are step times, ``waiting`` and ``blocked`` shares of the time, ``rate`` bytes per
    second. ``mean_step_s`` is None without steps. The program has logged ``samples`` (per second)
    and, by name, the other numbers in ``logged``. ``last_logged`` has the last value of each, None
    if it is not finite, and its step. ``mean_samples`` is per second of training.
    """

    name: str
    rank: int
    host: str
    pid: int
    begin_s: float
    end_s: float
    step_s: list[float | None]
    waiting: list[float | None]
    blocked: list[float | None]
    rate: list[float | None]
    steps: int
    mean_step_s: float | None
    size_bytes: float
    waiting_share: float
    blocked_share: float
    samples: list[float | None] = field(default_factory=list)
    mean_samples: float | None = None
    logged: Mapping[str, list[float | None]] = field(default_factory=dict)
    last_logged: Mapping[str, tuple[float | None, int | None]] = field(default_factory=dict)
    lateness: Lateness = field(default_factory=Lateness)


class SlowTensor(NamedTuple):
    """The slowest run of one tensor or group of tensors; ``waited_for`` is a text."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    tensors: int
    size_bytes: int
    at_s: float
    took_s: float
    queued_s: float
    rank: str
    waited_for: str


class Event(NamedTuple):
    """``kind`` is ``failure``, ``world``, ``stall``, ``value`` or ``launcher``.

    ``ranks`` have reported it.
    """

    at_s: float
    kind: str
    ranks: str
    text: str


class Trial(NamedTuple):
    """Parameters that autotuning has tried, or its result."""

    at_s: float
    parameters: Mapping[str, bool | float | str]
    score: float
    is_chosen: bool


class Report(NamedTuple):
    """The whole report. Times, except those of ``job``, are seconds since the job's begin.

    The first column of the rows begins at ``first_s``, when training began; each covers
    ``column_s`` seconds. ``by_tensors`` and ``by_bytes`` count buckets
    by powers of two; they cover ``seen_buckets`` of all ``buckets``. ``settings`` are by variable,
    with whether they were changed; ``versions`` have each value with the ranks that have it.
    """

    job: Job
    first_s: float
    column_s: float
    columns: int
    rows: Sequence[Row]
    size: int
    by_tensors: Sequence[int]
    by_bytes: Sequence[int]
    buckets: int
    seen_buckets: int
    tensors: int
    slow: Sequence[SlowTensor]
    events: Sequence[Event]
    trials: Sequence[Trial]
    settings: Mapping[str, tuple[str, bool]]
    versions: Mapping[str, Mapping[str, str]]
    data_plane: str
    has_lateness: bool


BucketKey = tuple[str, int, int]  # world, process set, number
_NOTABLE_US = 50  # shorter times are no waits
_ENOUGH = 0.9  # the share of a process set's ranks that determines the last one
_MOST = 0.8  # a process that causes this share of all waits is named


def lateness_of(slacks: Mapping[int, Iterable[tuple[BucketKey, int]]]) -> dict[int, Lateness]:
    """The lateness of each process, from the slacks that processes have recorded, in us.

    A bucket begins on all ranks when its last rank is ready. So the rank that waited least for the
    begin came last; that needs no common clock.

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
