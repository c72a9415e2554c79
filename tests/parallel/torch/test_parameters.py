"""broadcast_parameters: all forms of params, any dtype and memory order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import horovod.torch as hvd

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.uint16,
    torch.float8_e5m2,
]


def root() -> int:
    return hvd.size() - 1


def test_state_dict(assert_same_everywhere):
    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4))
    model[1].num_batches_tracked += hvd.rank()
    hvd.broadcast_parameters(model.state_dict(), root_rank=root())
    assert_same_everywhere(list(model.state_dict().values()))
    assert model[1].num_batches_tracked == root()


@pytest.mark.parametrize("named", [True, False])
def test_list(named):
    params = [nn.Parameter(torch.full((2, index), float(hvd.rank()))) for index in range(3)]
    hvd.broadcast_parameters(
        [(f"p{index}", param) for index, param in enumerate(params)] if named else params, root()
    )
    for index, param in enumerate(params):
        assert torch.equal(param.data, torch.full((2, index), float(root())))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype):
    tensors = [torch.full((), hvd.rank()).to(dtype), torch.full((3, 2), hvd.rank()).to(dtype)]
    hvd.broadcast_parameters(tensors, root())
    for tensor in tensors:
        expected = torch.full(tensor.shape, root()).to(dtype)
        assert torch.equal(tensor.to(torch.complex128), expected.to(torch.complex128))


def test_memory_order_may_differ_between_ranks():
    expected = torch.arange(24.0).view(2, 3, 2, 2)
    tensor = expected.clone() if hvd.rank() == root() else torch.zeros(2, 3, 2, 2)
    if hvd.rank() % 2 == 0:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    stride = tensor.stride()
    hvd.broadcast_parameters({"weight": tensor, "nothing": None}, root())
    assert torch.equal(tensor, expected)
    assert tensor.stride() == stride


def test_invalid_params():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="invalid params of type generator"):
        hvd.broadcast_parameters(model.named_parameters(), 0)
    with pytest.raises(ValueError, match=r"invalid params.*'extra'.*int"):
        hvd.broadcast_parameters({"extra": 3}, 0)
    with pytest.raises(ValueError, match=r"invalid params.*'graph' is not dense.*sparse_coo"):
        hvd.broadcast_parameters({"graph": torch.eye(2).to_sparse()}, 0)


def test_mismatch_is_raised_everywhere():
    if hvd.size() == 1:
        pytest.skip("needs ranks that disagree")
    tensors = {"a": torch.zeros(2 + (hvd.rank() == 0)), "b": torch.full((2,), float(hvd.rank()))}
    with pytest.raises(hvd.HorovodInternalError):
        hvd.broadcast_parameters(tensors, 0)
    hvd.broadcast_parameters({"b": tensors["b"]}, 0)
    assert torch.equal(tensors["b"], torch.zeros(2))
