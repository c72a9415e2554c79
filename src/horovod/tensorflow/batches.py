"""Into how many graph nodes the tensors of one call go.

One node starts when all its inputs are there. Where computing and reducing can overlap, a node for
every so many bytes starts what is ready while the rest is still being computed; where no core is
spare, reducing would only take turns with computing, and one node costs least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from horovod.core.world import has_spare_cores, is_initialized

__all__ = ["batches_of"]

_BATCH_BYTES = 1 << 20  # as much as the engine starts at once while a core is spare


def batches_of(tensors: Sequence[Any]) -> list[slice]:
    """Consecutive parts of the tensors, of at least 1 MiB where their shapes are known.

    Neighbours stay together: gradients of variables made one after the other are ready at about the
    same time. Ranks may divide differently, since each tensor is an operation of its own.
    """
    if not (is_initialized() and has_spare_cores()):
        return [slice(0, len(tensors))]
    batches, begin, size_bytes = [], 0, 0
    for position, tensor in enumerate(tensors, start=1):
        size_bytes += _size_bytes(tensor)
        if size_bytes >= _BATCH_BYTES or position == len(tensors):
            batches.append(slice(begin, position))
            begin, size_bytes = position, 0
    return batches


def _size_bytes(tensor: Any) -> int:
    """0 where a dimension is not known while the graph is built."""
    dims = tensor.shape.as_list() if tensor.shape.rank is not None else [None]
    return 0 if None in dims else math.prod(dims) * tensor.dtype.size
