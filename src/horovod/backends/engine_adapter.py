"""Between the engine and a ``Backend``: turns addresses into arrays and numbers into names.

The engine's background thread calls these methods with the GIL
(``bindings/external_backend_py.cc``). The engine keeps the memory behind the arrays alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from horovod.backends.protocol import Backend, Request

# As in engine/core/dtype.h; None: NumPy has no such dtype.
_DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"),
    *(None, "uint16"),
)
_REDUCTIONS = {1: "sum", 3: "min", 4: "max", 5: "product"}  # as in engine/core/reduce_op.h


class _Memory:
    """Memory at an address, for ``np.asarray``."""

    def __init__(self, address: int, count: int, dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": (count,),
            "typestr": dtype.str,
        }


class EngineAdapter:
    """The object that the engine calls. ``name`` is used in its messages."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.backend = backend
        self._request: Request | None = None

    def reduces(self, dtype: int, op: int) -> bool:
        return _DTYPES[dtype] in self.backend.dtypes and _REDUCTIONS[op] in self.backend.reductions

    def allreduce(self, address: int, count: int, dtype: int, op: int) -> None:
        array = _array(address, count, np.dtype(_DTYPES[dtype]))
        self._request = self.backend.allreduce(array, _REDUCTIONS[op])

    def broadcast(self, address: int, size_bytes: int, root: int) -> None:
        self._request = self.backend.broadcast(_bytes(address, size_bytes), root)

    def allgather(self, given: int, taken: int, sizes: Sequence[int]) -> None:
        own = sizes[self.backend.group.rank]
        self._request = self.backend.allgather(_bytes(given, own), _bytes(taken, sum(sizes)), sizes)

    def alltoall(
        self, given: int, given_sizes: Sequence[int], taken: int, taken_sizes: Sequence[int]
    ) -> None:
        self._request = self.backend.alltoall(
            _bytes(given, sum(given_sizes)),
            given_sizes,
            _bytes(taken, sum(taken_sizes)),
            taken_sizes,
        )

    def barrier(self) -> None:
        self._request = self.backend.barrier()

    def test(self) -> bool:
        if self._request is not None and self._request.test():
            self._request = None
        return self._request is None


_BYTE = np.dtype(np.uint8)


def _bytes(address: int, count: int) -> NDArray[np.uint8]:
    return _array(address, count, _BYTE)


def _array(address: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    if count == 0:  # an empty tensor may have no address
        return np.empty(0, dtype)
    return np.asarray(_Memory(address, count, dtype))
