"""The batches that made the weights, from the histories of all processes. Pure functions.

A state is the result of one batch on an older state. Every process has a state; a batch gives it a
new one, a restore gives it the last saved one, and in a world it takes rank 0's. So all states form
a tree, and the final weights contain the batches on the path from its root to their leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from histories import Event

__all__ = ["Lineage", "Made", "lineage_of"]


@dataclass(frozen=True, eq=False)
class Made:
    """A state: made in ``world`` by batch number ``step`` from ``parent``."""

    parent: Made | None = None
    world: str = ""
    step: int = 0
    epoch: int = 0

    def way(self) -> list[Made]:
        """All batches in it, the oldest first."""
        return list(self._back())[::-1]

    def _back(self) -> Iterator[Made]:
        made: Made | None = self
        while made is not None and made.parent is not None:
            yield made
            made = made.parent


@dataclass
class _Process:
    has_state: bool = False
    current: Made = field(default_factory=Made)
    saved: Made = field(default_factory=Made)


@dataclass
class Lineage:
    """``ends``: the final state of each process that has ended. ``problems``: contradictions."""

    ends: dict[str, Made] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def lineage_of(events: Iterable[Event]) -> Lineage:
    """Build it from all events, ordered by time."""
    return _Reader().read(events)


class _Reader:
    def __init__(self) -> None:
        self._root = Made()
        self._batches: dict[tuple[Made, str], Made] = {}
        self._processes: dict[str, _Process] = {}
        self._sources: dict[str, Made] = {}
        self._found = Lineage()

    def read(self, events: Iterable[Event]) -> Lineage:
        steps = {
            "enter": self._enter,
            "sync": self._sync,
            "batch": self._batch,
            "save": self._save,
            "restore": self._restore,
            "end": self._end,
        }
        for event in events:
            if event.kind in steps:
                fresh = _Process(current=self._root, saved=self._root)
                steps[event.kind](event, self._processes.setdefault(event.process, fresh))
        return self._found

    def _enter(self, event: Event, process: _Process) -> None:
        if event.rank != 0:
            return
        # A world can end before any rank has a state: then the next world has nothing to lose.
        if not process.has_state and any(other.has_state for other in self._processes.values()):
            self._problem(event, "rank 0 of a later world has no state: training began anew")
        self._sources[event.world] = process.current

    def _sync(self, event: Event, process: _Process) -> None:
        source = self._sources[event.world]
        if process.has_state and process.saved.step > source.step:
            self._problem(event, f"had saved step {process.saved.step}, newer than rank 0's state")
        process.current = process.saved = source
        process.has_state = True
        self._expect_step(event, process)

    def _batch(self, event: Event, process: _Process) -> None:
        key = process.current, event.world
        if key not in self._batches:
            self._batches[key] = Made(*key, step=event.step, epoch=event.epoch)
        process.current = self._batches[key]
        self._expect_step(event, process)
        if process.current.parent and event.step != process.current.parent.step + 1:
            self._problem(event, f"follows step {process.current.parent.step}")

    def _save(self, event: Event, process: _Process) -> None:
        process.saved = process.current
        self._expect_step(event, process)

    def _restore(self, event: Event, process: _Process) -> None:
        process.current = process.saved
        self._expect_step(event, process)

    def _end(self, event: Event, process: _Process) -> None:
        self._expect_step(event, process)
        self._found.ends[event.process] = process.current

    def _expect_step(self, event: Event, process: _Process) -> None:
        if event.step != process.current.step:
            self._problem(event, f"expected step {process.current.step}")

    def _problem(self, event: Event, text: str) -> None:
        self._found.problems.append(
            f"{event.process}: {event.kind} at step {event.step} in world {event.world!r}: {text}"
        )
