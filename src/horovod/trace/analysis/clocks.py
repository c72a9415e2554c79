"""The differences of the hosts' clocks, from the collectives that their ranks ran together.

The method is that of the timeline (``engine/trace/clock_alignment.h``): no rank starts a collective
before all have submitted its tensors, and none has the result of an allreduce before all have
started. So each collective bounds the difference from both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from horovod.trace.operations import buckets_of
from horovod.trace.recording import Recording

_DRIFT = 1e-4  # of two clocks, one of which an NTP client may slew
_ALLREDUCE = 0  # horovod.core.operations.Kind
_MOST_EVENTS = 16384


class HostClock(NamedTuple):
    """A host's clock is ``ahead_ns`` of the first host's, give or take ``error_ns``."""

    ahead_ns: int
    error_ns: int


@dataclass
class _Done:
    """The known events of a host in a collective."""

    last_submit: int | None = None
    first_start: int | None = None
    last_start: int | None = None
    first_done: int | None = None
    needs_all: bool = False


_Collectives = dict[tuple[int, int], _Done]


def align_clocks(
    recordings: Mapping[int, Recording], hosts: Sequence[Sequence[int]]
) -> dict[int, HostClock]:
    """The clock of each rank's host, without the ranks for which it is unknown."""
    clocks: dict[int, HostClock] = {}
    found = [_collectives([recordings[r] for r in ranks if r in recordings]) for ranks in hosts]
    for number, ranks in enumerate(hosts):
        clock = _difference(found[0], found[number]) if number else HostClock(0, 0)
        if clock is not None:
            clocks.update({rank: clock for rank in ranks if rank in recordings})
    return clocks


def _collectives(recordings: Sequence[Recording]) -> _Collectives:
    found: _Collectives = {}
    for recording in recordings:
        for bucket in buckets_of(replace(recording, events=recording.events[-_MOST_EVENTS:])):
            done = found.setdefault((bucket.process_set, bucket.number), _Done())
            started = bucket.started_ns
            done.first_start = min(done.first_start or started, started)
            done.last_start = max(done.last_start or started, started)
            if bucket.done_ns is not None:
                done.first_done = min(done.first_done or bucket.done_ns, bucket.done_ns)
            for operation in bucket.operations:
                label = recording.labels.get(operation.label)
                done.needs_all |= label is not None and label.kind == _ALLREDUCE
                if operation.submitted_ns is not None:
                    done.last_submit = max(done.last_submit or 0, operation.submitted_ns)
    return found


def _difference(here: _Collectives, there: _Collectives) -> HostClock | None:
    """How far ``there`` is ahead; None unless it is bounded from both sides."""
    low: list[tuple[int, int]] = []  # a bound, and when on the clock here
    high: list[tuple[int, int]] = []
    for key in here.keys() & there.keys():
        one, other = here[key], there[key]
        _bound(low, other.last_submit, one.first_start)
        _bound(high, other.first_start, one.last_submit)
        if one.needs_all or other.needs_all:
            _bound(low, other.last_start, one.first_done)
            _bound(high, other.first_done, one.last_start)
    if not low or not high:
        return None
    latest = max(at for _, at in (*low, *high))
    lowest = max(bound - _DRIFT * (latest - at) for bound, at in low)
    highest = min(bound + _DRIFT * (latest - at) for bound, at in high)
    middle = (lowest + highest) / 2
    return HostClock(round(middle), max(0, round((highest - lowest) / 2)))


def _bound(bounds: list[tuple[int, int]], there: int | None, here: int | None) -> None:
    if there is not None and here is not None:
        bounds.append((there - here, here))
