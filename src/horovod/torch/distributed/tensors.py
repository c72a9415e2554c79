"""Tensors of ``torch.distributed`` for the engine: contiguous, of dtypes that it knows.

The engine takes them as flat ones (``Operation.is_flat``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from horovod.torch.adapter import DTYPES


def single(tensors: torch.Tensor | Sequence[torch.Tensor], title: str) -> torch.Tensor:
    """The only tensor of a call. ``ValueError`` for none or several."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{title}: expected a single tensor, found {len(tensors)}")
    return tensors[0]


def sendable(tensors: torch.Tensor | Sequence[torch.Tensor], title: str) -> torch.Tensor:
    """The only tensor of a message.

    Messages are counted when they start: to refuse one later would shift those that follow.

    Raises:
        ValueError: there is none, or several, or the engine cannot move it.
    """
    tensor = single(tensors, title)
    if tensor.layout is torch.strided and (tensor.is_cpu or tensor.is_cuda):
        return tensor
    raise ValueError(
        f"{title}: expected a dense tensor in host memory or on a GPU, found one of layout "
        f"{tensor.layout} on {tensor.device}"
    )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the engine can read and write the tensor as it is."""
    return (
        tensor.dtype in DTYPES
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor, flat, for a collective that only moves them.

    It shares the memory of a contiguous tensor. Elements that the engine does not know are bytes.

    Raises:
        ValueError: the tensor is sparse.
    """
    flat = _dense(tensor).contiguous().view(-1)
    return flat if tensor.dtype in DTYPES else flat.view(torch.uint8)


def reducible(tensor: torch.Tensor) -> torch.Tensor:
    """The same for a reduction: complex numbers are pairs of real ones."""
    dense = _dense(tensor)
    if dense.is_complex():
        dense = torch.view_as_real(dense)
    return dense.contiguous().view(-1)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        raise ValueError(f"expected a dense tensor, found one of layout {tensor.layout}")
    return tensor.detach().resolve_conj().resolve_neg()


class Landing:
    """Where a result goes that must be in ``tensor`` in the end: there, or beside it first.

    ``reduces``: the elements are as ``reducible`` makes them, else as ``movable``. ``is_sized``:
    the other ranks decide how large the result is.

    Attributes:
        tensor, title: as given.
        memory: what the engine writes: ``tensor``, or a contiguous copy or view of it.
        finish: to be called with what the engine has allocated; None if there is nothing to do.
    """

    def __init__(
        self, tensor: torch.Tensor, title: str, *, reduces: bool = False, is_sized: bool = False
    ) -> None:
        self.tensor = tensor
        self.title = title
        self._is_beside = False
        if is_plain(tensor):
            self.memory = tensor
        else:
            self.memory = reducible(tensor) if reduces else movable(tensor)
            self._is_beside = self.memory.data_ptr() != tensor.data_ptr() and tensor.numel() > 0
        self.finish: Callable[[Any], None] | None = (
            self.end if self._is_beside or is_sized else None
        )

    def end(self, outputs: Sequence[Any] = ()) -> None:
        """Copy the result to where it must be, if it is not there.

        Raises:
            ValueError: the engine has allocated the result, as it was of another size.
        """
        if outputs:
            raise ValueError(
                f"{self.title}: the ranks sent {outputs[0].shape[0]} elements for an output of "
                f"{self.memory.numel()}"
            )
        if self._is_beside:
            put(self.memory, self.tensor)


def put(flat: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy flat elements, or bytes, into a tensor of any layout."""
    target = tensor.detach()
    if target.is_complex() and flat.is_floating_point():
        flat = torch.view_as_complex(flat.view(-1, 2))
    target.copy_(flat.view(target.dtype).view(target.shape))


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of all tensors, one after the other, as ``movable`` makes them."""
    return torch.cat([movable(tensor) for tensor in tensors])


def split_into(flat: torch.Tensor, tensors: Sequence[torch.Tensor], title: str) -> None:
    """Copy consecutive parts of ``flat`` into the tensors. ``ValueError`` if sizes do not fit."""
    parts = [movable(tensor).numel() if tensor.numel() else 0 for tensor in tensors]
    if sum(parts) != flat.numel():
        raise ValueError(
            f"{title}: the ranks sent {flat.numel()} elements, and the outputs have {sum(parts)}"
        )
    for part, tensor in zip(torch.split(flat, parts), tensors, strict=True):
        if tensor.numel():
            put(part, tensor)
