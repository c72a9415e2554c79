"""Overlapping process sets, and the check that all ranks of a set got the same bits."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

import horovod.numpy as hvd


def overlapping(size: int) -> list[list[int]]:
    """Proper subsets of the world; with three ranks or more each overlaps another one."""
    candidates = [range(size - 1), range(1, size), {0, size - 1}, [size // 2]]
    proper: list[list[int]] = []
    for ranks in map(sorted, candidates):
        if 0 < len(ranks) < size and ranks not in proper:
            proper.append(ranks)
    return proper


@contextmanager
def registered(ranks_of_sets: Sequence[Sequence[int]]) -> Iterator[list[hvd.ProcessSet]]:
    """The global set and these; collective, in a world with dynamic process sets."""
    added = [hvd.add_process_set(list(ranks)) for ranks in ranks_of_sets]
    yield [hvd.global_process_set, *added]
    for process_set in reversed(added):
        hvd.remove_process_set(process_set)


class Digest:
    """Checksums of results by process set, which must be equal on all its ranks."""

    def __init__(self) -> None:
        self._sums: dict[int, int] = {}

    def add(self, process_set: hvd.ProcessSet, bits: np.ndarray) -> None:
        number = process_set.process_set_id
        assert number is not None
        self._sums[number] = zlib.crc32(np.ascontiguousarray(bits), self._sums.get(number, 0))

    def check(self) -> None:
        """Compare with the other ranks; a collective call."""
        sums: dict[int, set[int]] = {}
        for others in hvd.allgather_object(self._sums, name="digest"):
            for number, checksum in others.items():
                sums.setdefault(number, set()).add(checksum)
        differing = [number for number, found in sums.items() if len(found) > 1]
        assert not differing, f"results differ between members of process sets {differing}"
