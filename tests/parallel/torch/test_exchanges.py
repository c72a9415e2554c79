"""allgather, broadcast and alltoall: dtype x rows x form x process set against the reference."""

from __future__ import annotations

import pytest
import reference
import torch

import horovod.torch as hvd

RESTS = [(), (3,), (2, 0), (1025,)]
# Rows that a rank brings.
ROWS = {
    "equal": lambda rank: 3,
    "uneven": lambda rank: 2 * rank % 5 + 1,
    "none on rank 0": lambda rank: rank,
    "none on most": lambda rank: 4 * (rank % 3 == 1),
    "none": lambda rank: 0,
}
# How many rows one rank sends to another one.
SPLITS = {
    "equal": lambda source, target: 2,
    "uneven": lambda source, target: (source + 2 * target) % 4,
    "to oneself": lambda source, target: 5 * (source == target),
    "to one": lambda source, target: 3 * (target % 3 == 1),
    "none": lambda source, target: 0,
}


def allgathered(tensors, process_set):
    """Every form of allgather on these tensors."""
    yield [hvd.allgather(tensor, None, process_set) for tensor in tensors]
    named = enumerate(tensors)
    handles = [hvd.allgather_async(tensor, f"gather.{i}", process_set) for i, tensor in named]
    yield [hvd.synchronize(handle) for handle in handles]
    yield hvd.grouped_allgather(tensors, "gather", process_set)
    yield hvd.synchronize(hvd.grouped_allgather_async(tensors, "gather", process_set))


@pytest.mark.parametrize("dtype", reference.DTYPES, ids=str)
def test_allgather(process_sets, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        for rows in ROWS.values():
            cases = [
                [reference.values(dtype, (rows(rank), *rest), rank) for rank in process_set.ranks]
                for rest in RESTS
            ]
            mine = [inputs[process_set.rank()] for inputs in cases]
            for results in allgathered(mine, process_set):
                for inputs, result in zip(cases, results, strict=True):
                    assert result.dtype == dtype
                    assert torch.equal(result, torch.cat(inputs))


def broadcasted(tensors, root, process_set):
    """Every form of broadcast on copies of these tensors."""
    copies = [[tensor.clone() for tensor in tensors] for _ in range(2)]
    yield [hvd.broadcast(tensor, root, None, process_set) for tensor in tensors]
    yield [hvd.broadcast_(tensor, root, None, process_set) for tensor in copies[0]]
    for start, inputs in [(hvd.broadcast_async, tensors), (hvd.broadcast_async_, copies[1])]:
        handles = [start(tensor, root, f"b.{i}", process_set) for i, tensor in enumerate(inputs)]
        yield [hvd.synchronize(handle) for handle in reversed(handles)][::-1]
    for result, tensor in zip(copies[0], copies[1], strict=True):
        assert torch.equal(result, tensor)


@pytest.mark.parametrize("dtype", reference.DTYPES, ids=str)
def test_broadcast_from_every_root(process_sets, dtype):
    shapes = [(), (0,), (1,), (17,), (3, 5), (64, 1025)]
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        for root in process_set.ranks:
            mine = [reference.values(dtype, shape, hvd.rank()) for shape in shapes]
            before = [tensor.clone() for tensor in mine]
            expected = [reference.values(dtype, shape, root) for shape in shapes]
            for results in broadcasted(mine, root, process_set):
                for result, wanted in zip(results, expected, strict=True):
                    assert result.dtype == dtype
                    assert torch.equal(result, wanted)
            assert all(torch.equal(*pair) for pair in zip(mine, before, strict=True))


def check_alltoall(process_set, dtype, rest, splits, rows_left=0):
    """An alltoall with these splits, whose tensors have ``rows_left`` rows that go nowhere."""
    sent = [
        [splits(source, target) for target in process_set.ranks] for source in process_set.ranks
    ]
    inputs = [
        reference.values(dtype, (sum(counts) + rows_left, *rest), source)
        for source, counts in zip(process_set.ranks, sent, strict=True)
    ]
    expected, counts = reference.exchanged(inputs, sent, process_set.rank())
    mine, my_splits = inputs[process_set.rank()], sent[process_set.rank()]
    as_tensor = torch.tensor(my_splits, dtype=torch.int32)
    handle = hvd.alltoall_async(mine, as_tensor, "alltoall", process_set)
    for result, received in [
        hvd.synchronize(handle),
        hvd.alltoall(mine, my_splits, None, process_set),
        hvd.alltoall(mine, tuple(my_splits), "alltoall", process_set),
    ]:
        assert result.dtype == dtype
        assert torch.equal(result, expected)
        assert received.dtype == torch.int32
        assert received.tolist() == counts


@pytest.mark.parametrize("dtype", reference.DTYPES, ids=str)
def test_alltoall(process_sets, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        for splits in SPLITS.values():
            for rest in RESTS:
                check_alltoall(process_set, dtype, rest, splits)
            check_alltoall(process_set, dtype, (3,), splits, rows_left=2)


@pytest.mark.parametrize("dtype", reference.DTYPES, ids=str)
def test_alltoall_without_splits(process_sets, dtype):
    for process_set in filter(hvd.ProcessSet.included, process_sets):
        size = process_set.size()
        for rows_each in (0, 1, 3, 500):
            inputs = [
                reference.values(dtype, (rows_each * size, 7), rank) for rank in process_set.ranks
            ]
            sent = [[rows_each] * size] * size
            expected, counts = reference.exchanged(inputs, sent, process_set.rank())
            mine = inputs[process_set.rank()]
            assert torch.equal(hvd.alltoall(mine, process_set=process_set), expected)
            handle = hvd.alltoall_async(mine, process_set=process_set)
            result, received = hvd.synchronize(handle)
            assert torch.equal(result, expected)
            assert received.tolist() == counts


def test_alltoall_with_splits_on_some_ranks_and_other_rows():
    """Equal parts on even ranks, splits on odd ones: what is sent counts, not how it is said."""
    size = hvd.size()
    sent = [
        [source + 1] * size
        if source % 2 == 0
        else [(source + target) % 3 for target in range(size)]
        for source in range(size)
    ]
    inputs = [
        reference.values(torch.float32, (sum(counts), 5), source)
        for source, counts in enumerate(sent)
    ]
    expected, counts = reference.exchanged(inputs, sent, hvd.rank())
    splits = sent[hvd.rank()] if hvd.rank() % 2 else None
    result, received = hvd.synchronize(hvd.alltoall_async(inputs[hvd.rank()], splits, "some"))
    assert torch.equal(result, expected)
    assert received.tolist() == counts
