"""Which recordings belong together: those of the ranks of one world."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from horovod.trace.recording import Recording

__all__ = ["RecordedWorld", "collect_worlds"]


@dataclass(frozen=True)
class RecordedWorld:
    """One world of a job; ``recordings`` has the newest of each rank that has one.

    ``number`` tells the worlds of a job apart, ``names`` are the ranks' in messages.
    """

    number: str
    names: tuple[str, ...]
    recordings: Mapping[int, Recording]

    @property
    def facts(self) -> Mapping[str, Any]:
        """What its ranks knew of it; see ``Recording.world``."""
        return self.recordings[min(self.recordings)].world

    @property
    def size(self) -> int:
        """How many ranks it had."""
        return len(self.names)

    def name_of(self, rank: int) -> str:
        """What messages call a rank; events of a damaged recording may name one there is not."""
        return self.names[rank] if 0 <= rank < self.size else f"rank {rank}"

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that left no recording."""
        return tuple(rank for rank in range(self.size) if rank not in self.recordings)

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host."""
        return list(self.facts.get("hosts") or [list(range(self.size))])

    @property
    def written_epoch_ns(self) -> int:
        """When the newest of its recordings was written."""
        return max(recording.written_epoch_ns for recording in self.recordings.values())


def collect_worlds(recordings: Iterable[Recording]) -> list[RecordedWorld]:
    """The worlds that these recordings are of, the newest last.

    Those that do not say which ranks there were are of none.
    """
    found: dict[tuple[str, tuple[str, ...]], dict[int, Recording]] = {}
    for recording in recordings:
        # Processes are part of it: another job may have had the same id before.
        names = tuple(recording.world.get("ranks", ()))
        if not names:
            continue
        by_rank = found.setdefault((str(recording.world.get("world", "1")), names), {})
        known = by_rank.get(recording.rank)
        if known is None or known.written_epoch_ns < recording.written_epoch_ns:
            by_rank[recording.rank] = recording
    worlds = [RecordedWorld(number, names, by_rank) for (number, names), by_rank in found.items()]
    return sorted(worlds, key=lambda world: world.written_epoch_ns)
