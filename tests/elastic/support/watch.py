"""The state of the current world from the histories, to choose the next fault."""

from __future__ import annotations

from dataclasses import dataclass

from histories import Event, Histories, in_order

__all__ = ["Member", "Watch"]


@dataclass(frozen=True)
class Member:
    """A process of the world; ``pid`` in its own namespace."""

    process: str
    rank: int
    hostname: str
    pid: int


class Watch:
    """Reads new events with every ``look``; ``events`` are all so far."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories
        self.events: list[Event] = []
        self.world = ""
        self._size = 0
        self._members: dict[str, dict[int, Member]] = {}
        self._completed: dict[str, dict[int, float]] = {}

    def look(self) -> list[Event]:
        """Read and return new events."""
        new = in_order(self._histories.new())
        for event in new:
            self._note(event)
        self.events += new
        return new

    @property
    def members(self) -> tuple[Member, ...]:
        """The members of the newest world by rank; empty until all have entered it."""
        found = self._members.get(self.world, {})
        if len(found) < self._size:
            return ()
        return tuple(found[rank] for rank in sorted(found))

    def batches_done(self, world: str) -> int:
        """How many batches of ``world`` any rank has reported."""
        return len(self._completed.get(world, ()))

    def first_batch_in(self, world: str) -> float:
        """The time of the first batch of ``world``, which must exist."""
        return min(self._completed[world].values())

    def first_batch_after(self, time: float, but_in: str) -> float | None:
        """The time of the first batch after ``time`` in a world other than ``but_in``."""
        firsts = [
            first
            for world, completed in self._completed.items()
            if world != but_in and (first := min(completed.values())) > time
        ]
        return min(firsts, default=None)

    def _note(self, event: Event) -> None:
        if event.kind == "enter":
            if event.world not in self._members:
                self.world, self._size = event.world, event.size
            member = Member(event.process, event.rank, event.hostname, event.pid)
            self._members.setdefault(event.world, {})[event.rank] = member
        elif event.kind == "batch":
            completed = self._completed.setdefault(event.world, {})
            completed[event.step] = min(event.time, completed.get(event.step, event.time))
