"""Groups recordings by worlds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from horovod.trace.failures import EXCEPTION, RankFailure, described
from horovod.trace.recording import Recording


class RecordedWorld(NamedTuple):
    """One world of a job; ``recordings`` has the newest recording of each rank.

    ``number`` identifies the world in its job; ``names`` are the ranks' names in messages;
    ``failures`` are the exceptions that ranks have recorded, the first one first.
    """

    number: str
    names: tuple[str, ...]
    recordings: Mapping[int, Recording]
    failures: tuple[RankFailure, ...] = ()

    @property
    def facts(self) -> Mapping[str, Any]:
        """The description of the world; see ``Recording.world``."""
        return self.recordings[min(self.recordings)].world

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.names)

    def name_of(self, rank: int) -> str:
        """A rank's name in messages; a damaged recording may have ranks that do not exist."""
        return self.names[rank] if 0 <= rank < self.size else f"rank {rank}"

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks without a recording."""
        return tuple(rank for rank in range(self.size) if rank not in self.recordings)

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host."""
        return list(self.facts.get("hosts") or [list(range(self.size))])

    @property
    def written_epoch_ns(self) -> int:
        """The time when the newest recording was written."""
        return max(recording.written_epoch_ns for recording in self.recordings.values())


def collect_worlds(recordings: Iterable[Recording]) -> list[RecordedWorld]:
    """The worlds of these recordings, the newest last.

    Recordings without the world's ranks are left out.
    """
    found: dict[tuple[str, tuple[str, ...]], dict[int, Recording]] = {}
    failures: dict[tuple[str, tuple[str, ...]], list[RankFailure]] = {}
    for recording in sorted(recordings, key=lambda recording: recording.written_epoch_ns):
        # The names have the processes: an earlier job may have had the same id.
        names = tuple(recording.world.get("ranks", ()))
        if not names:
            continue
        key = (str(recording.world.get("world", "1")), names)
        found.setdefault(key, {})[recording.rank] = recording
        if recording.reason == EXCEPTION and (
            failed := described(recording.rank, recording.detail)
        ):
            failures.setdefault(key, []).append(failed)
    worlds = [
        RecordedWorld(number, names, by_rank, tuple(failures.get((number, names), ())))
        for (number, names), by_rank in found.items()
    ]
    return sorted(worlds, key=lambda world: world.written_epoch_ns)
