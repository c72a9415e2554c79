"""Sets of times: arrays ``[n, 2]`` of begins and ends in ns, in order and without overlaps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Intervals", "covered", "intersection", "merged"]

Intervals = NDArray[np.int64]


def merged(pairs: Iterable[tuple[int, int]] | Intervals) -> Intervals:
    """The set that these pairs of begin and end, in any order, cover together."""
    array = np.array(pairs if isinstance(pairs, np.ndarray) else list(pairs), np.int64)
    array = array.reshape(-1, 2)
    array = array[array[:, 1] > array[:, 0]]
    if not len(array):
        return array
    array = array[np.argsort(array[:, 0], kind="stable")]
    ends = np.maximum.accumulate(array[:, 1])
    is_first = np.concatenate(([True], array[1:, 0] > ends[:-1]))
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:] - 1, len(array) - 1)
    return np.stack([array[firsts, 0], ends[lasts]], axis=1)


def covered(intervals: Intervals, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much is covered from each of ``edges``, which grow, to the next one."""
    if not len(intervals):
        return np.zeros(max(0, len(edges) - 1), np.int64)
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.concatenate(([0], np.cumsum(lengths)))
    index = np.searchsorted(intervals[:, 0], edges, side="right")
    last = np.maximum(index - 1, 0)
    over = np.maximum(0, intervals[last, 1] - edges)
    until = np.where(index > 0, before[index] - over, 0)
    return np.asarray(np.diff(until), np.int64)


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """What is in both."""
    if not len(one) or not len(other):
        return np.zeros((0, 2), np.int64)
    edges = np.unique(np.concatenate([one.ravel(), other.ravel()]))
    is_in = (covered(one, edges) > 0) & (covered(other, edges) > 0)
    return merged(np.stack([edges[:-1][is_in], edges[1:][is_in]], axis=1))
