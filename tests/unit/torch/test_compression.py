"""Compressors: dtypes on the wire and back."""

from __future__ import annotations

import pytest
import torch

from horovod.torch.compression import (
    BF16Compressor,
    Compression,
    Compressor,
    FP16Compressor,
    NoneCompressor,
    PowerSGD,
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_fp16_restores_floating_dtypes(dtype):
    tensor = torch.tensor([[1.5, -2.0]], dtype=dtype)
    wire, context = Compression.fp16.compress(tensor)
    assert wire.dtype == torch.float16
    restored = Compression.fp16.decompress(wire, context)
    assert restored.dtype == dtype
    assert torch.equal(restored, tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bf16_restores_floating_dtypes(dtype):
    tensor = torch.tensor([[1.5, -2.0, 2.0**100]], dtype=dtype)
    wire, context = Compression.bf16.compress(tensor)
    assert wire.dtype == torch.bfloat16
    restored = Compression.bf16.decompress(wire, context)
    assert restored.dtype == dtype
    assert torch.equal(restored, tensor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32, torch.bool])
def test_bf16_leaves_other_dtypes_alone(dtype):
    tensor = torch.ones(3, dtype=dtype)
    wire, context = Compression.bf16.compress(tensor)
    assert wire is tensor
    assert Compression.bf16.decompress(wire, context) is tensor


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
def test_fp16_leaves_other_dtypes_alone(dtype):
    tensor = torch.ones(3, dtype=dtype)
    wire, context = Compression.fp16.compress(tensor)
    assert wire is tensor
    assert Compression.fp16.decompress(wire, context) is tensor


def test_none_passes_the_same_tensor():
    tensor = torch.ones(3)
    wire, context = Compression.none.compress(tensor)
    assert wire is tensor
    assert Compression.none.decompress(wire, context) is tensor


def test_base_class_has_to_be_filled_in():
    with pytest.raises(NotImplementedError):
        Compressor.compress(torch.ones(1))
    with pytest.raises(NotImplementedError):
        Compressor.decompress(torch.ones(1), None)
    for compressor in (NoneCompressor, FP16Compressor, BF16Compressor, PowerSGD):
        assert issubclass(compressor, Compressor)
