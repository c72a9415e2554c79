"""Finds training steps: a step begins at each submission of the anchor.

A training loop submits the same names in every step. The *anchor* is one of the names with the most
usual number of submissions: the one with the longest pause before it, so that a step begins where
communication starts. Ranks' steps are matched by the collective that the anchor ran in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from horovod.trace.operations import operations_of
from horovod.trace.recording import EventKind, Label, Recording

MOST_STEPS = 100  # only the last ones count
FEWEST_STEPS = 5  # fewer are too few
_UNNAMED = re.compile(r"\w+\.noname\.\d+")


@dataclass(frozen=True)
class Steps:
    """The last steps that all ranks have recorded.

    ``begins`` has for each rank the times at which its steps begin, on its host's clock, and the
    end of the last step. ``anchor`` is the name of the submission that begins a step.
    """

    anchor: str
    begins: Mapping[int, NDArray[np.int64]]

    @property
    def count(self) -> int:
        """The number of steps of each rank."""
        return min(len(times) for times in self.begins.values()) - 1


def signature(label: Label) -> Hashable:
    """The identity of a submission, in all steps and on all ranks.

    That is its name; operations without a name are identified by kind and shape.
    """
    title = label.title_in_group
    if title or _UNNAMED.fullmatch(label.name):
        return (label.process_set, title, label.kind, label.dtype, label.op, label.shape)
    return label.key


def find_steps(recordings: Mapping[int, Recording]) -> Steps | None:
    """The steps of a world; None if its ranks have too few steps in common."""
    chosen = next((rank for rank in sorted(recordings) if len(recordings[rank].events)), None)
    if chosen is None:
        return None
    anchor = _anchor(recordings[chosen])
    if anchor is None:
        return None
    runs = {rank: _runs(recording, anchor) for rank, recording in recordings.items()}
    runs = {rank: of_rank for rank, of_rank in runs.items() if of_rank}
    if not runs:
        return None
    common = sorted(set.intersection(*(set(of_rank) for of_rank in runs.values())))
    common = common[-MOST_STEPS - 1 :]
    if len(common) <= FEWEST_STEPS:
        return None
    begins = {
        rank: np.array([of_rank[bucket] for bucket in common], np.int64)
        for rank, of_rank in runs.items()
    }
    if any(np.any(np.diff(times) <= 0) for times in begins.values()):
        return None
    name = next(
        label.name for label in recordings[chosen].labels.values() if signature(label) == anchor
    )
    return Steps(name, begins)


def _anchor(recording: Recording) -> Hashable | None:
    submits = recording.of_kind(EventKind.SUBMIT)
    known = {number: signature(label) for number, label in recording.labels.items()}
    signs = [known.get(int(number)) for number in submits["subject"]]
    counts = Counter(sign for sign in signs if sign is not None)
    weights: Counter[int] = Counter()
    for count in counts.values():
        if count > FEWEST_STEPS:
            # One more or less: the recording begins and ends within a step.
            for near in (count, count + 1):
                weights[near] += count
    if not weights:
        return None
    usual = max(weights, key=lambda count: (weights[count], count))
    alike = {sign for sign, count in counts.items() if count in (usual, usual - 1)}
    pauses: dict[Hashable, list[int]] = {}
    before = None
    for sign, time_ns in zip(signs, submits["time_ns"].tolist(), strict=True):
        if sign in alike:
            if before is not None:
                pauses.setdefault(sign, []).append(time_ns - before)
            before = time_ns
    return max(pauses, key=lambda sign: float(np.median(pauses[sign])), default=None)


def _runs(recording: Recording, anchor: Hashable) -> dict[int, int]:
    """By collective, the time when its anchor was submitted."""
    ids = [number for number, label in recording.labels.items() if signature(label) == anchor]
    events = recording.of_kind(EventKind.SUBMIT, EventKind.FUSED)
    anchors = replace(recording, events=events[np.isin(events["subject"], ids)])
    return {
        op.bucket: op.submitted_ns
        for op in operations_of(anchors)
        if op.bucket is not None and op.submitted_ns is not None
    }
