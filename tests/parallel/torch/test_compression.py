"""What a reduction of compressed tensors is worth."""

from __future__ import annotations

import pytest
import torch

import horovod.torch as hvd


def values_of(rank):
    return torch.randn(
        1000, generator=torch.Generator(torch.get_default_device()).manual_seed(rank)
    )


@pytest.mark.parametrize(
    ("compression", "digits"), [(hvd.Compression.fp16, 11), (hvd.Compression.bf16, 8)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_average_is_good_to_the_wire_dtype(compression, digits, dtype, assert_same_everywhere):
    """Inputs are rounded, their sum is not, the result is: each half a unit in the last place."""
    tensor = values_of(hvd.rank()).to(dtype)
    result = hvd.allreduce(tensor, name="compressed", compression=compression)
    inputs = torch.stack([values_of(rank).to(dtype) for rank in range(hvd.size())])
    assert result.dtype == dtype
    unit = 2.0**-digits
    bound = unit * (inputs.abs().mean(0) + inputs.mean(0).abs()) * 1.01 + 1e-7
    assert ((result - inputs.mean(0)).abs() <= bound).all()
    assert_same_everywhere([result])


def test_bf16_keeps_what_fp16_overflows():
    tensor = torch.full((3,), 1e30)
    assert hvd.allreduce(tensor, name="wide", compression=hvd.Compression.fp16).isinf().all()
    result = hvd.allreduce(tensor, name="wide", compression=hvd.Compression.bf16)
    torch.testing.assert_close(result, tensor, rtol=2.0**-8, atol=0)


@pytest.mark.parametrize("name", ["none", "fp16", "bf16"])
def test_gradients_flow_through(name):
    tensor = torch.ones(3, requires_grad=True)
    hvd.allreduce(tensor, name="flow", compression=getattr(hvd.Compression, name)).sum().backward()
    assert torch.equal(tensor.grad, torch.ones(3))
    assert tensor.grad.dtype == torch.float32
