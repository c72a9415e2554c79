"""Tensors in the file of a state: dense ones as their bytes, all others as torch writes them."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor


class TensorLeaf:
    """A ``Leaf``; reading runs nothing that the file says."""

    name = "tensor"

    def encode(self, value: Any) -> tuple[tuple[Any, ...], bytes | memoryview] | None:
        """Header and bytes of a tensor; None for anything else."""
        if not isinstance(value, Tensor):
            return None
        if not _is_simple(value):
            written = io.BytesIO()
            torch.save(value, written)
            return (), written.getbuffer()
        dense = value.resolve_conj().resolve_neg().contiguous()
        data = dense.reshape(-1).view(torch.uint8).numpy().data
        return (str(value.dtype).removeprefix("torch."), tuple(value.shape)), data

    def decode(self, header: tuple[Any, ...], data: bytearray) -> Any:
        """The tensor; a dense one is in host memory."""
        if not header:
            return torch.load(io.BytesIO(data), weights_only=True)
        dtype, shape = getattr(torch, header[0]), header[1]
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).reshape(shape)


def _is_simple(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and not tensor.requires_grad
    )
