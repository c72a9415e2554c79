"""Invented recordings: a script for each rank, and whole trainings. Times in ms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from horovod.trace.recording import EVENT_DTYPE, EventKind, Label, Recording, WaitPhase

ALLREDUCE, BARRIER, JOIN = 0, 3, 6
FLOAT32 = 6
MS = 1_000_000


class Script:
    """The events of one rank; its clock is ``ahead_ms`` ahead of the others'."""

    def __init__(self, rank: int = 0, size: int = 2, ahead_ms: float = 0, **facts: Any) -> None:
        self.rank = rank
        self._ahead_ns = round((1000 + ahead_ms) * MS)
        self._events: list[tuple[int, ...]] = []
        self._labels: dict[tuple[int, str], Label] = {}
        names = [f"rank {number} (pid {100 + number} on node)" for number in range(size)]
        self._world = {
            "world": "1",
            "size": size,
            "ranks": names,
            "hosts": [list(range(size))],
            "cores": 64,
            "settings": {},
            **facts,
        }

    def event(
        self, kind: EventKind, at_ms: float, subject: int = 0, value: int = 0, **more: int
    ) -> Script:
        time_ns = round(at_ms * MS) + self._ahead_ns
        self._events.append(
            (time_ns, kind, more.get("detail", 0), more.get("process_set", 0), subject, value)
        )
        return self

    def label(self, name: str, process_set: int = 0, **fields: Any) -> int:
        key = (process_set, name)
        if key not in self._labels:
            default = {"kind": ALLREDUCE, "dtype": FLOAT32, "op": 0, "tensors": 1, "shape": (100,)}
            self._labels[key] = Label(
                id=len(self._labels),
                key=abs(hash(key)),
                name=name,
                process_set=process_set,
                **{**default, **fields},
            )
        return self._labels[key].id

    def submit(
        self, at_ms: float, name: str, size: int = 400, process_set: int = 0, **fields: Any
    ) -> Script:
        label = self.label(name, process_set, **fields)
        return self.event(EventKind.SUBMIT, at_ms, label, size, process_set=process_set)

    def start(
        self, at_ms: float, number: int, names: Sequence[str], process_set: int = 0
    ) -> Script:
        self.event(EventKind.BUCKET_START, at_ms, number, len(names), process_set=process_set)
        for name in names:
            label = self.label(name, process_set)
            self.event(EventKind.FUSED, at_ms, label, number, process_set=process_set)
        return self

    def done(self, at_ms: float, number: int, process_set: int = 0) -> Script:
        return self.event(EventKind.BUCKET_DONE, at_ms, number, process_set=process_set)

    def waited(
        self, until_ms: float, peer: int, for_ms: float, phase: WaitPhase = WaitPhase.STAGED
    ) -> Script:
        return self.event(EventKind.WAITED, until_ms, peer, round(for_ms * MS), detail=phase)

    def blocked(self, until_ms: float, for_ms: float) -> Script:
        return self.event(EventKind.BLOCKED, until_ms, value=round(for_ms * MS))

    def failed(self, at_ms: float, name: str, code: int) -> Script:
        return self.event(EventKind.ERROR, at_ms, self.label(name), code)

    def recording(self, written_ms: float, reason: str = "end", **fields: Any) -> Recording:
        return Recording(
            path=Path("none"),
            rank=self.rank,
            name=self._world["ranks"][self.rank],
            reason=reason,
            written_ns=round(written_ms * MS) + self._ahead_ns,
            written_epoch_ns=10**18 + round(written_ms * MS),
            world=self._world,
            labels={label.id: label for label in self._labels.values()},
            events=np.array(self._events, EVENT_DTYPE),
            **{"written_by": self.rank, "detail": "", "lost": 0, "stacks": "", **fields},
        )


def training(
    compute_ms: Sequence[float | Sequence[float]],
    steps: int = 20,
    tensors: int = 4,
    run_ms: float = 1,
    **facts: Any,
) -> dict[int, Recording]:
    """Ranks that compute for the given times in each step, then reduce."""
    scripts = training_scripts(compute_ms, steps, tensors, run_ms, **facts)
    return {script.rank: script.recording(10_000) for script in scripts}


def training_scripts(
    compute_ms: Sequence[float | Sequence[float]],
    steps: int = 20,
    tensors: int = 4,
    run_ms: float = 1,
    **facts: Any,
) -> list[Script]:
    """The same, as scripts that can be continued. Steps begin at 0."""
    scripts = [Script(rank, len(compute_ms), **facts) for rank in range(len(compute_ms))]
    names = [f"allreduce.g{number}" for number in range(tensors)]
    now = 0.0
    for step in range(steps):
        arrivals = [now + (c if isinstance(c, int | float) else c[step]) for c in compute_ms]
        start = max(arrivals) + 0.01
        now = start + run_ms
        for script, arrival in zip(scripts, arrivals, strict=True):
            for name in names:
                script.submit(arrival, name)
            script.start(start, step + 1, names).done(now, step + 1)
            script.blocked(now, now - arrival)
    return scripts


def world_of(recordings: Mapping[int, Recording]) -> Any:
    """The world of these ranks."""
    from horovod.trace.worlds import collect_worlds

    (world,) = collect_worlds(recordings.values())
    return world
