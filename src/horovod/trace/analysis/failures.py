"""What ended a world: ranks that died, and operations that ranks submitted differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from horovod.errors import ErrorCode
from horovod.trace.recording import EventKind, Label, Recording

__all__ = ["Death", "Mismatch", "find_deaths", "find_mismatches", "first_error"]


@dataclass(frozen=True)
class Death:
    """A rank that other ranks have lost, and the first of them, the ``witness``."""

    rank: int
    witness: int
    epoch_ns: int


@dataclass(frozen=True)
class Mismatch:
    """An operation that failed with a mismatch, as each rank has submitted it."""

    labels: Mapping[int, Label]

    @property
    def name(self) -> str:
        """The operation's name."""
        return next(iter(self.labels.values())).name


def find_deaths(recordings: Mapping[int, Recording]) -> list[Death]:
    """Ranks that were lost, in the order in which other ranks noticed it."""
    first: dict[int, Death] = {}
    for recording in recordings.values():
        for event in recording.of_kind(EventKind.ALARM):
            rank = int(event["subject"])
            death = Death(rank, recording.rank, recording.epoch_ns(int(event["time_ns"])))
            if rank not in first or death.epoch_ns < first[rank].epoch_ns:
                first[rank] = death
    return sorted(first.values(), key=lambda death: death.epoch_ns)


def find_mismatches(recordings: Mapping[int, Recording]) -> list[Mismatch]:
    """Operations that failed because the ranks' shapes, dtypes or kinds differ."""
    names: dict[tuple[int, str], None] = {}
    for recording in recordings.values():
        for event in recording.of_kind(EventKind.ERROR):
            label = recording.labels.get(int(event["subject"]))
            if event["value"] == ErrorCode.MISMATCH and label is not None:
                names[label.process_set, label.name] = None
    found = []
    for process_set, name in names:
        labels = {}
        for rank, recording in sorted(recordings.items()):
            for label in recording.labels.values():  # the newest comes last
                if (label.process_set, label.name) == (process_set, name):
                    labels[rank] = label
        found.append(Mismatch(labels))
    return found


def first_error(recordings: Mapping[int, Recording]) -> Recording | None:
    """The recording of the first rank that ended with an error."""
    ended = []
    for recording in recordings.values():
        failures = recording.of_kind(EventKind.FAILED)
        if len(failures) and recording.detail:
            ended.append((recording.epoch_ns(int(failures[0]["time_ns"])), recording))
    return min(ended, key=lambda pair: pair[0])[1] if ended else None
