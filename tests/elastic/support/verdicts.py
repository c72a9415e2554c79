"""Invariants of every chaos run. Pure functions over its events.

Each returns texts about violations. ``MEMORY_BYTES`` is the memory that the allocator of a
process may keep; a leak exceeds it in a longer run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from histories import Event, in_order
from lineage import Made, lineage_of

__all__ = ["MEMORY_BYTES", "Batch", "batches_in_weights", "verdicts"]

MEMORY_BYTES = 24 << 20


@dataclass(frozen=True)
class Batch:
    """A batch in the final weights; ``samples`` and ``losses`` by rank of its world."""

    step: int
    epoch: int
    samples: tuple[tuple[int, ...], ...]
    losses: tuple[float | None, ...]  # None: the rank died before it wrote its event


def verdicts(events: Iterable[Event], sample_count: int) -> list[str]:
    """All of them."""
    ordered = in_order(events)
    batches, problems = batches_in_weights(ordered)
    problems += epochs_are_whole(batches, sample_count)
    problems += digests_agree(ordered)
    problems += nothing_is_left(ordered)
    return problems


def batches_in_weights(ordered: Sequence[Event]) -> tuple[list[Batch], list[str]]:
    """The batches in the final weights, in order, and the problems found."""
    lineage = lineage_of(ordered)
    problems = list(lineage.problems)
    ends = set(lineage.ends.values())
    if len(ends) != 1:
        return [], [*problems, f"there are {len(ends)} different final states, expected 1"]
    begun, done = _by_batch(ordered, "begin"), _by_batch(ordered, "batch")
    batches = []
    for made in ends.pop().way():
        shares, told = begun[made.world, made.step], done[made.world, made.step]
        size = max((event.size for event in shares.values()), default=0)
        missing = set(range(size)) - set(shares)
        if missing or not shares:
            problems.append(f"{_name(made)}: ranks {sorted(missing)} took no part in it")
            continue
        samples = tuple(shares[rank].samples for rank in range(size))
        losses = tuple(told[rank].loss if rank in told else None for rank in range(size))
        batches.append(Batch(made.step, made.epoch, samples, losses))
    return batches, problems


def epochs_are_whole(batches: Sequence[Batch], sample_count: int) -> list[str]:
    """Each epoch has every sample once; the last batch may repeat some as padding."""
    problems = []
    epochs: dict[int, list[Batch]] = defaultdict(list)
    for batch in batches:
        epochs[batch.epoch].append(batch)
    if sorted(epochs) != list(range(len(epochs))):
        problems.append(f"epochs {sorted(epochs)} are not all that there should be")
    for epoch, parts in epochs.items():
        counts = Counter(sample for part in parts for share in part.samples for sample in share)
        lost = sorted(set(range(sample_count)) - set(counts))
        extra = sum(counts.values()) - len(counts)
        padding = len(parts[-1].samples) - 1
        if lost:
            problems.append(f"epoch {epoch}: samples {lost} are not in the weights")
        if extra > padding:
            again = sorted(sample for sample in counts if counts[sample] > 1)
            problems.append(f"epoch {epoch}: {extra} samples too many, {padding} may be: {again}")
    return problems


def digests_agree(ordered: Sequence[Event]) -> list[str]:
    """At the same point all ranks of a world have the same weights, bit by bit."""
    points: dict[tuple[object, ...], dict[str, str]] = defaultdict(dict)
    for event in ordered:
        if event.kind in ("save", "start", "end") and event.world:
            # Two saves of one step differ if an epoch has ended in between.
            point = (event.world, event.kind, event.step, event.epoch)
            points[point][event.process] = event.digest
    return [
        f"{kind} of step {step} in world {world}: weights differ: {digests}"
        for (world, kind, step, _), digests in points.items()
        if len(set(digests.values())) > 1
    ]


def nothing_is_left(ordered: Sequence[Event]) -> list[str]:
    """A process has the same descriptors and threads in all worlds of a size; memory stays."""
    problems = []
    starts: dict[tuple[str, int, bool], list[Event]] = defaultdict(list)
    for event in ordered:
        if event.kind == "start":
            starts[event.process, event.size, event.rank == 0].append(event)
    for (process, size, _), worlds in starts.items():
        where = f"in its worlds of {size}"
        threads = [event.threads for event in worlds]
        if len(set(threads)) > 1:
            problems.append(f"{process}: threads {where}: {threads}")
        first = Counter(worlds[0].descriptors)
        for event in worlds[1:]:
            found = Counter(event.descriptors)
            if found != first:
                gone, new = sorted((first - found).elements()), sorted((found - first).elements())
                problems.append(
                    f"{process}: descriptors {where}: {len(worlds[0].descriptors)}, then "
                    f"{len(event.descriptors)}: gone {gone}, new {new}"
                )
    by_process: dict[str, list[Event]] = defaultdict(list)
    for event in ordered:
        if event.kind == "start":
            by_process[event.process].append(event)
    for process, worlds in by_process.items():
        grown = worlds[-1].resident_bytes - worlds[min(2, len(worlds) - 1)].resident_bytes
        if grown > MEMORY_BYTES:
            problems.append(f"{process}: {grown >> 20} MiB more after {len(worlds)} worlds")
    return problems


def _by_batch(ordered: Sequence[Event], kind: str) -> dict[tuple[str, int], dict[int, Event]]:
    """Events of this kind by rank, for each world and step."""
    found: dict[tuple[str, int], dict[int, Event]] = defaultdict(dict)
    for event in ordered:
        if event.kind == kind:
            found[event.world, event.step][event.rank] = event
    return found


def _name(made: Made) -> str:
    return f"batch {made.step} of epoch {made.epoch} in world {made.world}"
