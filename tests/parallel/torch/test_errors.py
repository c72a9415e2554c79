"""Tensors that cannot be sent, batches and kinds under one name: the torch binding's own errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import horovod.torch as hvd
from horovod.errors import MismatchError
from horovod.torch import adapter

CALLS = {
    "allreduce": lambda tensor: hvd.allreduce(tensor, name="bad"),
    "allreduce_": lambda tensor: hvd.allreduce_(tensor, name="bad"),
    "allreduce_async": lambda tensor: hvd.allreduce_async(tensor, name="bad"),
    "grouped_allreduce": lambda tensor: hvd.grouped_allreduce([torch.ones(2), tensor], name="bad"),
    "allgather": lambda tensor: hvd.allgather(tensor, "bad"),
    "grouped_allgather": lambda tensor: hvd.grouped_allgather([tensor, torch.ones(2)], "bad"),
    "broadcast": lambda tensor: hvd.broadcast(tensor, 0, "bad"),
    "broadcast_": lambda tensor: hvd.broadcast_(tensor, 0, "bad"),
    "alltoall": lambda tensor: hvd.alltoall(tensor, None, "bad"),
    "reducescatter": lambda tensor: hvd.reducescatter(tensor, "bad"),
    "grouped_reducescatter": lambda tensor: hvd.grouped_reducescatter([tensor], "bad"),
}


@pytest.fixture(autouse=True)
def usable_afterwards() -> Iterator[None]:
    yield
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="bad").tolist() == [hvd.size()] * 2


@pytest.mark.parametrize("call", list(CALLS))
def test_tensors_that_cannot_be_sent(call):
    """Refused on the rank that calls: nothing was submitted, so the name is free."""
    with pytest.raises(ValueError, match="contiguous"):
        CALLS[call](torch.ones(12, 12).t())
    with pytest.raises(ValueError, match="contiguous"):
        CALLS[call](torch.ones(24, 2)[::2])
    with pytest.raises(ValueError, match="not supported"):
        CALLS[call](torch.ones(12).to(torch.float8_e4m3fn))
    text = (
        r"the tensor is sparse \(torch.sparse_coo\); sparse_allreduce_async .*sparse_as_dense=True"
    )
    with pytest.raises(ValueError, match=text):
        CALLS[call](torch.eye(12).to_sparse())
    with pytest.raises(ValueError, match="host memory"):
        CALLS[call](torch.ones(12, device="meta"))


def test_errors_name_operation_and_tensor():
    gap = torch.ones(4, 4)[:, :2]
    with pytest.raises(ValueError, match=r"^allgather 'bad': the tensor is not contiguous"):
        hvd.allgather(gap, name="bad")
    with pytest.raises(ValueError, match=r"^allreduce: the tensor is not contiguous"):
        hvd.allreduce_async(gap)
    with pytest.raises(ValueError, match=r"^grouped_allreduce 'bad': tensor 2 of 2: the tensor is"):
        hvd.grouped_allreduce_([torch.ones(2), gap], name="bad")
    with pytest.raises(ValueError, match=r"^allgather 'bad': the tensor is sparse"):
        hvd.allgather(torch.eye(4).to_sparse(), name="bad")
    with pytest.raises(ValueError, match=r"^allreduce 'bad': the tensor is not contiguous"):
        adapter.allreduce_batch_async_(
            [torch.ones(3), gap], ["allreduce.first", "allreduce.bad"], hvd.Sum
        )


@pytest.mark.parametrize(
    "splits",
    [
        torch.ones(4),
        torch.ones(4, dtype=torch.int64),
        torch.ones(2, 2, dtype=torch.int32),
        torch.tensor(3, dtype=torch.int32),
    ],
    ids=["float32", "int64", "two dimensions", "scalar"],
)
def test_splits_that_are_no_int32_vector(splits):
    with pytest.raises(ValueError, match="int32 vector"):
        hvd.alltoall(torch.ones(12), splits, "bad")


def test_splits_that_are_no_integers():
    for splits in ([1.5] * hvd.size(), 3):
        with pytest.raises(ValueError, match="list of integers"):
            hvd.alltoall(torch.ones(12), splits, "bad")


def test_a_name_twice_in_a_batch_submits_nothing():
    tensors = [torch.ones(3), torch.ones(3)]
    with pytest.raises(ValueError, match="'twice': the name occurs twice"):
        adapter.allreduce_batch_async_(tensors, ["allreduce.twice"] * 2, hvd.Sum)
    assert tensors[0].tolist() == [1, 1, 1]
    assert hvd.allreduce(tensors[0], op=hvd.Sum, name="twice").tolist() == [hvd.size()] * 3


def test_one_bad_member_stops_its_batch():
    tensors = [torch.ones(3), torch.ones(4, 4).t()[:, :2]]
    with pytest.raises(ValueError, match="contiguous"):
        adapter.allreduce_batch_async_(tensors, ["allreduce.first", "allreduce.bad"], hvd.Sum)
    assert hvd.allreduce(tensors[0], op=hvd.Sum, name="first").tolist() == [hvd.size()] * 3


def test_two_kinds_under_one_name():
    if hvd.size() == 1:
        pytest.skip("one rank cannot disagree")
    for odd in range(hvd.size()):
        if hvd.rank() == odd:
            handle = adapter.allreduce_batch_async_([torch.ones(4)], ["allgather.m"], hvd.Sum)
        else:
            handle = hvd.allgather_async(torch.ones(4), "m")
        text = "Mismatched operations: .*(ALLREDUCE.*ALLGATHER|ALLGATHER.*ALLREDUCE)"
        with pytest.raises(MismatchError, match=text):
            hvd.synchronize(handle)
        assert hvd.allgather(torch.ones(2), "m").tolist() == [1.0] * 2 * hvd.size()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: hvd.allreduce(0.5), "expected a torch tensor, found float; torch.as_tensor"),
        (lambda: hvd.allreduce_(None), "allreduce: expected a torch tensor, found NoneType$"),
        (lambda: hvd.allreduce(torch.ones(1), name="\ud800"), "surrogates"),
        (lambda: hvd.allreduce(torch.ones(1), op=[]), "op="),
        (lambda: hvd.reducescatter(torch.ones(1), prescale_factor=None), "factors numbers"),
        (lambda: hvd.allreduce(torch.ones(1), prescale_factor="2"), "factors numbers"),
        (lambda: hvd.allreduce(torch.ones(1), compression=None), "must be a Compressor"),
        (lambda: hvd.allreduce(torch.ones(1), process_set=[0]), "must be a ProcessSet"),
        (lambda: hvd.allgather_object(1, process_set=None), "must be a ProcessSet"),
        (lambda: hvd.broadcast(torch.ones(1), "0"), "root_rank must be a rank"),
        (lambda: hvd.alltoall(torch.ones(4), splits=[]), "splits is empty"),
        (lambda: hvd.alltoall(torch.ones(4), splits=[0.5]), "list of integers"),
        (lambda: hvd.broadcast_optimizer_state(None, 0), "expected an optimizer"),
    ],
)
def test_arguments_of_the_wrong_type(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def number_text(operation: str) -> str:
    return rf"^{operation}: expected a torch tensor, found float; torch.as_tensor makes one of it$"


@pytest.mark.parametrize(
    ("call", "operation"),
    [
        (hvd.allreduce_, "allreduce"),
        (hvd.allreduce_async, "allreduce"),
        (hvd.allreduce_async_, "allreduce"),
        (hvd.allgather_async, "allgather"),
        (lambda number: hvd.broadcast_(number, 0), "broadcast"),
        (lambda number: hvd.broadcast_async(number, 0), "broadcast"),
        (hvd.alltoall_async, "alltoall"),
        (hvd.reducescatter_async, "reducescatter"),
        (
            lambda number: hvd.grouped_allreduce_async([number]),
            "grouped_allreduce: tensor 1 of 1",
        ),
    ],
)
def test_a_number_in_place_of_a_tensor(call, operation):
    """Without a word of torch's own converter."""
    with pytest.raises(ValueError, match=number_text(operation)):
        call(0.5)


def test_a_group_and_a_single_tensor_under_one_name():
    if hvd.size() == 1:
        pytest.skip("one rank cannot disagree")
    if hvd.rank() == 0:
        name = "grouped_allreduce.m"
        handle = adapter.allreduce_batch_async_([torch.ones(4)], [name], hvd.Sum)
    else:
        handle = hvd.grouped_allreduce_async([torch.ones(4)] * 2, name="m", op=hvd.Sum)
    with pytest.raises(MismatchError, match="Mismatched group sizes"):
        hvd.synchronize(handle)


def test_average_and_op():
    with pytest.raises(ValueError, match="not both"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="not both"):
        hvd.grouped_allreduce([torch.ones(1)], average=False, op=hvd.Average)
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.allreduce(torch.ones(1), average=False, name="old").item() == hvd.size()
    with pytest.warns(DeprecationWarning, match="average"):
        assert hvd.allreduce(torch.ones(1), average=True, name="old").item() == 1


def test_a_dtype_without_scaling_or_average():
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(torch.ones(3, dtype=torch.bool), op=hvd.Average)
    with pytest.raises(ValueError, match="bool"):
        hvd.allreduce(torch.ones(3, dtype=torch.bool), op=hvd.Sum, prescale_factor=2.0)


def test_handles_are_used_once():
    handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 3
    assert hvd.synchronize(handle) is None
    assert hvd.poll(handle)
    assert hvd.synchronize(123_456_789) is None


def test_sparse_needs_its_own_call():
    with pytest.raises(ValueError, match="sparse COO"):
        hvd.sparse_allreduce_async(torch.ones(3), "dense", hvd.Sum)
