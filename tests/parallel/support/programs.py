"""Random programs of collectives, and a model of the results of their steps.

A program is the same on all ranks: waves of steps on overlapping process sets. Every rank starts
the steps of a wave on its sets in its own order, waits for some of them, and continues with
others pending. No rank can wait for ever: a rank waits for a step only after it has started all
steps before the end of that step in the program, so the rank that is furthest behind can always
continue. Values are small integers, so sums are exact in every dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import horovod.numpy as hvd

DTYPES = ["f2", "f4", "f8", "u1", "i1", "i2", "i4", "i8"]
KINDS = [
    "allreduce",
    "allreduce_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "allgather",
    "grouped_allgather",
    "broadcast",
    "broadcast_",
    "alltoall",
    "reducescatter",
    "grouped_reducescatter",
]
_COMBINE = {hvd.Sum: np.add, hvd.Min: np.minimum, hvd.Max: np.maximum, hvd.Product: np.multiply}
_MOST_BYTES = 2_000_000


@dataclass(frozen=True)
class Step:
    """One operation of a program, as all ranks know it."""

    kind: str
    name: str
    seed: int
    set_index: int
    ranks: Sequence[int]  # of the set
    dtypes: Sequence[str]  # one tensor each
    rows: Sequence[int]
    width: int
    op: int
    root: int
    lingers: bool  # may be pending when the next wave begins
    absent: frozenset[int] = frozenset()  # ranks that have joined

    def rows_of(self, rank: int, index: int) -> int:
        """Rows of tensor ``index`` on a rank of the world; they differ where this is allowed."""
        if "allgather" not in self.kind:
            return self.rows[index]
        return 0 if rank in self.absent else self.rows[index] * (rank % 3) // 2

    def splits_of(self, rank: int) -> list[int]:
        """Rows for each rank of the set: random parts; some rows are not sent."""
        if rank in self.absent:
            return [0] * len(self.ranks)
        cuts = np.random.default_rng([self.seed, rank]).integers(
            0, self.rows[0] + 1, len(self.ranks)
        )
        cuts.sort()
        return [int(part) for part in np.diff(cuts, prepend=0)]

    def inputs_of(self, rank: int) -> list[np.ndarray]:
        """The tensors of a rank of the world; zeros if it has joined."""
        shapes = [(self.rows_of(rank, index), self.width) for index in range(len(self.rows))]
        if rank in self.absent:
            return [np.zeros(*given) for given in zip(shapes, self.dtypes, strict=True)]
        return [
            _pattern(shape, dtype, self.seed + 31 * rank + index)
            for index, (shape, dtype) in enumerate(zip(shapes, self.dtypes, strict=True))
        ]


def make_waves(seed: int, sets: Sequence[Sequence[int]]) -> list[list[Step]]:
    """The program with this number over these process sets."""
    random = np.random.default_rng([seed, len(sets)])
    waves = []
    for wave in range(int(random.integers(1, 5))):
        count = int(random.integers(1, 12))
        usable = range(len(sets))
        waves.append([_make_step(random, wave, index, sets, usable) for index in range(count)])
    return waves


def make_departures(seed: int, sets: Sequence[Sequence[int]]) -> tuple[list[int], list[list[Step]]]:
    """A program in which one rank after the other joins: the order, and a wave before each join.

    Later steps are on the world and on sets without joined ranks.
    """
    random = np.random.default_rng([seed, len(sets), 1])
    order = [int(rank) for rank in random.permutation(sets[0])]
    waves = []
    for wave in range(len(order)):
        absent = frozenset(order[:wave])
        usable = [index for index, ranks in enumerate(sets) if not index or not absent & {*ranks}]
        steps = [_make_step(random, wave, index, sets, usable) for index in range(6)]
        roots = [int(random.choice([r for r in step.ranks if r not in absent])) for step in steps]
        waves.append(
            [
                replace(step, absent=absent if step.set_index == 0 else frozenset(), root=root)
                for step, root in zip(steps, roots, strict=True)
            ]
        )
    return order, waves


def _make_step(
    random: np.random.Generator,
    wave: int,
    index: int,
    sets: Sequence[Sequence[int]],
    usable: Sequence[int],
) -> Step:
    kind = str(random.choice(KINDS))
    tensors = int(random.integers(1, 6)) if "grouped" in kind else 1
    set_index = int(random.choice(usable))
    lingers = bool(random.random() < 0.3)
    width = int(random.choice([1, 1, 3, 16]))
    dtypes = [str(dtype) for dtype in random.choice(DTYPES, tensors)]
    return Step(
        kind=kind,
        # A name is used again in the next wave, after its operation is done.
        name=f"step {index}.{wave}" if lingers else f"step {index}",
        seed=int(random.integers(2**31)),
        set_index=set_index,
        ranks=sets[set_index],
        dtypes=dtypes,
        rows=[_row_count(random, np.dtype(dtype).itemsize * width) for dtype in dtypes],
        width=width,
        op=int(random.choice([hvd.Sum] if "scatter" in kind else list(_COMBINE))),
        root=int(random.choice(sets[set_index])),
        lingers=lingers,
    )


def _row_count(random: np.random.Generator, row_bytes: int) -> int:
    bytes_at_most = int(random.choice([1, 200, 20_000, 300_000, _MOST_BYTES], p=_SIZE_WEIGHTS))
    return int(random.integers(0, bytes_at_most // row_bytes + 2))


_SIZE_WEIGHTS = [0.15, 0.35, 0.25, 0.15, 0.1]


def _pattern(shape: tuple[int, int], dtype: str, seed: int) -> np.ndarray:
    """Values from 0 to 4 that are cheap to make and vary."""
    cycle = np.random.default_rng(seed).integers(0, 4, 251).astype(dtype)
    return np.resize(cycle, shape)


def start(step: Step, process_set: hvd.ProcessSet, inputs: list[np.ndarray]) -> int:
    """Begin a step on this rank; returns its handle."""
    call: Any = getattr(hvd, _ASYNC.get(step.kind, f"{step.kind}_async"))
    tensors = inputs if "grouped" in step.kind else inputs[0]
    if "allreduce" in step.kind or "scatter" in step.kind:
        return call(tensors, name=step.name, op=step.op, process_set=process_set)
    if "broadcast" in step.kind:
        return call(tensors, step.root, step.name, process_set)
    if step.kind == "alltoall":
        splits = np.array(step.splits_of(hvd.rank()), np.int32)
        return call(tensors, splits, step.name, process_set)
    return call(tensors, step.name, process_set)


_ASYNC = {
    "allreduce_": "allreduce_async_",
    "grouped_allreduce_": "grouped_allreduce_async_",
    "broadcast_": "broadcast_async_",
}


def check(step: Step, rank: int, inputs: list[np.ndarray], result: Any) -> None:
    """Compare the results and the inputs of a step on this rank with the model."""
    if step.kind == "alltoall":
        result, received = result
        np.testing.assert_array_equal(received, _received(step, rank))
    results = list(result) if "grouped" in step.kind else [result]
    expected = model(step, rank)
    for got, wanted in zip(results, expected, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)
    kept = results if step.kind.endswith("_") else step.inputs_of(rank)
    for given, wanted in zip(inputs, kept, strict=True):
        np.testing.assert_array_equal(given, wanted)


def model(step: Step, rank: int) -> list[np.ndarray]:
    """The results of a step on a rank of the world that is in its set."""
    position = list(step.ranks).index(rank)
    if "broadcast" in step.kind:
        return step.inputs_of(step.root)
    inputs = list(zip(*map(step.inputs_of, step.ranks), strict=True))
    if "allgather" in step.kind:
        return [np.concatenate(tensors) for tensors in inputs]
    if step.kind == "alltoall":
        return [np.concatenate([part[position] for part in _parts(step, inputs[0])])]
    reduced = [_reduced(step.op, tensors) for tensors in inputs]
    if "scatter" in step.kind:
        return [np.array_split(tensor, len(step.ranks))[position] for tensor in reduced]
    return reduced


def _reduced(op: int, tensors: Sequence[np.ndarray]) -> np.ndarray:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = _COMBINE[op](total, tensor)
    return total


def _parts(step: Step, tensors: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """The rows by source and target."""
    of_sources = zip(step.ranks, tensors, strict=True)
    return [np.split(tensor, np.cumsum(step.splits_of(rank))) for rank, tensor in of_sources]


def _received(step: Step, rank: int) -> list[int]:
    position = list(step.ranks).index(rank)
    return [step.splits_of(source)[position] for source in step.ranks]
