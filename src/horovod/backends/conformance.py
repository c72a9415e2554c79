"""Tests whether a data plane does what Horovod needs: all collectives, on any number of ranks.

Start it with a launcher that the data plane supports, and the name of the data plane; without a
name it tests the chosen one::

    horovodrun -np 3 python -m horovod.backends.conformance mine
    mpirun -np 4 python -m horovod.backends.conformance

Every rank compares each result with NumPy's and, bit by bit, with the other ranks'. The exit status
is 0 if all are right. It takes some seconds and about 300 MB on each rank.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import horovod.numpy as hvd
from horovod.core import world

_DTYPES = (
    *("uint8", "int8", "uint16", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "bool"),
)
_REDUCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "sum": (hvd.Sum, np.add.reduce),
    "min": (hvd.Min, np.minimum.reduce),
    "max": (hvd.Max, np.maximum.reduce),
    "product": (hvd.Product, np.multiply.reduce),
}
_COUNTS = (0, 1, 17, 4099)
# More than a data plane gets in one call, and odd.
_LARGE = 5_000_011

Array = NDArray[Any]
Case = tuple[str, Callable[[], None]]


class _Mistake(Exception):  # noqa: N818 not an error of this program
    """A wrong result."""


def main(arguments: list[str]) -> int:
    """Run all cases on this rank; 0 if all results were right on it."""
    if arguments:
        os.environ["HOROVOD_CPU_OPERATIONS"] = arguments[0]
    hvd.init(process_sets="dynamic")
    mistakes = []
    count = 0
    for name, case in _cases():
        count += 1
        try:
            case()
        except _Mistake as mistake:
            mistakes.append(f"{name}: {mistake}")
    place = f"rank {hvd.rank()} of {hvd.size()}: data plane {world.data_plane_name()}"
    told = f"{place}: {count - len(mistakes)} of {count} cases passed"
    print("\n  ".join([told, *mistakes]), flush=True)
    hvd.shutdown()
    return int(bool(mistakes))


def _cases() -> Iterator[Case]:
    for dtype in _DTYPES:
        yield f"allreduce {dtype}", partial(_allreduce, dtype)
        yield f"exchanges {dtype}", partial(_exchanges, dtype)
    yield "scaling", _scaling
    yield "fusion", _fusion
    yield "large", _large
    yield "many at a time", _many
    yield "adasum", _adasum
    yield "reducescatter", _reducescatter
    yield "process sets", _process_sets
    yield "join", _join


def _of(rank: int, count: int, dtype: str) -> Array:
    """The input of ``rank``: small numbers, so that sums and products are exact in every dtype."""
    values = (np.arange(count) * 7 + rank * 3) % 3 + (0 if dtype == "bool" else 1)
    return values.astype(dtype)


def _of_all(count: int, dtype: str) -> Array:
    return np.stack([_of(rank, count, dtype) for rank in range(hvd.size())])


def _check(found: Array, expected: Array, what: str) -> None:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        raise _Mistake(
            f"{what}: found {found.dtype} {found.shape}, expected {expected.dtype} {expected.shape}"
        )
    if not np.array_equal(found, expected):
        at = int(np.argmax(found.ravel() != expected.ravel()))
        raise _Mistake(
            f"{what}: element {at} is {found.ravel()[at]}, expected {expected.ravel()[at]}"
        )


def _check_alike(found: Array, what: str) -> None:
    """All ranks must have the same bits."""
    digest = hashlib.sha256(np.ascontiguousarray(found).tobytes()).digest()
    own = np.frombuffer(digest, np.uint8)[None]
    if len(np.unique(hvd.allgather(own, name="digest"), axis=0)) != 1:
        raise _Mistake(f"{what}: the ranks have different bits")


def _allreduce(dtype: str) -> None:
    for name, (op, reduce) in _REDUCTIONS.items():
        for count in _COUNTS:
            found = hvd.allreduce(_of(hvd.rank(), count, dtype), op=op)
            expected = reduce(_of_all(count, dtype), axis=0).astype(dtype)
            _check(found, expected, f"{name}, count {count}")


def _exchanges(dtype: str) -> None:
    rank, size = hvd.rank(), hvd.size()
    for root in range(size):
        found = hvd.broadcast(_of(rank, 131, dtype), root)
        _check(found, _of(root, 131, dtype), f"broadcast from {root}")
    rows = [(3 * r) % 4 for r in range(size)]  # some ranks give none
    found = hvd.allgather(_of(rank, rows[rank], dtype))
    _check(found, np.concatenate([_of(r, rows[r], dtype) for r in range(size)]), "allgather")
    splits = np.array([(rank + 2 * receiver) % 3 for receiver in range(size)], np.int32)
    found, received = hvd.alltoall(_of(rank, int(splits.sum()), dtype), splits)
    parts = [_part(sender, rank, dtype) for sender in range(size)]
    _check(found, np.concatenate(parts), "alltoall")
    _check(received, np.array([len(part) for part in parts], np.int32), "received splits")


def _part(sender: int, receiver: int, dtype: str) -> Array:
    ends = np.cumsum([(sender + 2 * other) % 3 for other in range(hvd.size())])
    values = _of(sender, int(ends[-1]), dtype)
    return values[ends[receiver] - (sender + 2 * receiver) % 3 : ends[receiver]]


def _scaling() -> None:
    size = hvd.size()
    for dtype in ("int32", "float16", "float32", "float64"):
        given = (np.arange(100) * 4 * size).astype(dtype)
        found = hvd.allreduce(given, op=hvd.Average)
        _check(found, given, f"average of {dtype}")
        found = hvd.allreduce(given, op=hvd.Sum, prescale_factor=0.5, postscale_factor=0.5)
        _check(found, (given * size / 4).astype(dtype), f"factors of {dtype}")


def _fusion() -> None:
    """Dtypes and sizes in one call; the data plane carries some, the C++ engine the others."""
    given = [
        _of(hvd.rank(), 100 + 37 * i, dtype)
        for i, dtype in enumerate(("float32", "float16", "int64", "float32", "uint16", "bool"))
    ]
    for found, array in zip(hvd.grouped_allreduce(given, op=hvd.Sum), given, strict=True):
        expected = np.add.reduce(_of_all(len(array), array.dtype.name), axis=0)
        _check(found, expected.astype(array.dtype), f"{array.dtype} in a group")
    for root in range(hvd.size()):
        handles = [hvd.broadcast_async(array, root, name=f"b{i}") for i, array in enumerate(given)]
        for array, handle in zip(given, handles, strict=True):
            expected = _of(root, len(array), array.dtype.name)
            _check(hvd.synchronize(handle), expected, f"{array.dtype} from {root}")


def _large() -> None:
    rank, size = hvd.rank(), hvd.size()
    expected = np.add.reduce(_of_all(_LARGE, "float32"), axis=0)
    given = _of(rank, _LARGE, "float32")
    _check(hvd.allreduce(given, op=hvd.Sum), expected, "allreduce")
    for found in hvd.grouped_allreduce([given, given.astype(np.float16)], op=hvd.Sum):
        _check(found.astype(np.float32), expected, f"{found.dtype} in a group")
    _check(hvd.broadcast(given, size - 1), _of(size - 1, _LARGE, "float32"), "broadcast")
    gathered = hvd.grouped_allgather([given[: 1 + rank], given])
    _check(gathered[1], _of_all(_LARGE, "float32").ravel(), "allgather in a group")
    splits = np.full(size, _LARGE // size, np.int32)
    found, _ = hvd.alltoall(given[: splits.sum()], splits)
    begin = rank * splits[0]
    parts = [_of(each, _LARGE, "float32")[begin : begin + splits[0]] for each in range(size)]
    _check(found, np.concatenate(parts), "alltoall")
    noise = np.random.default_rng(rank).standard_normal(_LARGE, np.float32)
    _check_alike(hvd.allreduce(noise, op=hvd.Sum), "a sum that is rounded")


def _many() -> None:
    handles = {
        i: hvd.allreduce_async(_of(hvd.rank(), i, "float32"), name=f"many.{i}", op=hvd.Sum)
        for i in np.random.default_rng(hvd.rank()).permutation(300).tolist()
    }
    for i, handle in handles.items():
        expected = np.add.reduce(_of_all(i, "float32"), axis=0)
        _check(hvd.synchronize(handle), expected, f"{i} elements")


def _adasum() -> None:
    orthogonal = np.zeros(hvd.size() * 3, np.float64)
    orthogonal[hvd.rank() * 3] = hvd.rank() + 1
    expected = np.zeros_like(orthogonal)
    expected[::3] = np.arange(hvd.size()) + 1
    _check(hvd.allreduce(orthogonal, op=hvd.Adasum), expected, "orthogonal vectors")
    same = np.arange(1000, dtype=np.float32)
    _check(hvd.allreduce(same, op=hvd.Adasum), same, "equal vectors")
    noise = np.random.default_rng(hvd.rank()).standard_normal(_LARGE, np.float32)
    _check_alike(hvd.allreduce(noise, op=hvd.Adasum), "different vectors")


def _reducescatter() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype in ("int32", "float16", "float32"):
        for rows in (size, 2 * size + 1, _LARGE // 4):
            found = hvd.reducescatter(_of(rank, rows, dtype), op=hvd.Sum)
            whole = np.add.reduce(_of_all(rows, dtype), axis=0).astype(dtype)
            _check(found, np.array_split(whole, size)[rank], f"{rows} rows of {dtype}")


def _process_sets() -> None:
    size = hvd.size()
    if size < 3:
        return
    first = hvd.add_process_set(range(size - 1))
    last = hvd.add_process_set(range(1, size))
    for _ in range(3):
        handles = {
            process_set: hvd.allreduce_async(
                np.full(5, hvd.rank(), np.int64), name="set", op=hvd.Sum, process_set=process_set
            )
            for process_set in ((first, last) if hvd.rank() % 2 else (last, first))
            if process_set.included()
        }
        for process_set, handle in handles.items():
            expected = np.full(5, sum(process_set.ranks or ()), np.int64)
            _check(hvd.synchronize(handle), expected, f"{process_set}")
    hvd.remove_process_set(first)
    hvd.remove_process_set(last)


def _join() -> None:
    """Each rank has one step more than the rank before it; a joined rank gives zeros."""
    rank, size = hvd.rank(), hvd.size()
    for step in range(rank + 1):
        found = hvd.allreduce(np.full(9, rank + 1.0), name=f"step.{step}", op=hvd.Sum)
        expected = np.full(9, sum(r + 1.0 for r in range(step, size)))
        _check(found, expected, f"step {step}")
    hvd.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
