"""The data plane of a world: finds the chosen backend and makes one for every process set.

An ``EngineAdapter`` is between a backend and the C++ engine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from horovod.backends.protocol import Backend, Group, GroupStore, Request
from horovod.errors import InitError
from horovod.rendezvous.store.client import Store

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
    """The object that the engine calls; turns addresses into arrays and numbers into names.

    The engine's background thread calls these methods with the GIL
    (``bindings/external_backend_py.cc``). The engine keeps the memory behind the arrays alive.
    ``name`` is used in its messages.
    """

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


# The name of the C++ engine, which needs no backend.
NATIVE = "native"

_ENTRY_POINTS = "horovod.backends"
_VARIABLE = "HOROVOD_CPU_OPERATIONS"
_log = logging.getLogger("horovod")


def find_backend(name: str) -> type[Backend]:
    """The backend that is registered under ``name``.

    Raises:
        InitError: there is none of this name, it cannot be imported, or it cannot be used here.
    """
    backend = _load(_entry_point(name))
    missing = backend.why_unavailable()
    if missing is not None:
        raise InitError(f"init: {_VARIABLE}={name}: {missing}")
    return backend


def _entry_point(name: str) -> EntryPoint:
    from importlib.metadata import entry_points  # few jobs have another data plane

    registered = {entry.name.lower(): entry for entry in entry_points(group=_ENTRY_POINTS)}
    if name not in registered:
        known = ", ".join(sorted({NATIVE, *registered}))
        raise InitError(f"init: {_VARIABLE}={name}: there is no such data plane; known are {known}")
    return registered[name]


def _load(entry: EntryPoint) -> type[Backend]:
    try:
        backend = entry.load()
    except Exception as error:
        raise InitError(
            f"init: {_VARIABLE}={entry.name}: {entry.value} cannot be imported: {error}"
        ) from error
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        raise InitError(
            f"init: {_VARIABLE}={entry.name}: {entry.value} is no subclass of "
            "horovod.backends.Backend"
        )
    return backend


class Neighbourhood(NamedTuple):
    """How the ranks of a world reach each other while they connect.

    ``scope`` is the prefix of this world's keys in ``store``; other worlds have other prefixes.
    """

    rank: int
    size: int
    store: Store
    scope: str
    address: str
    timeout_s: float


class _ScopedStore:
    """The part of the job's store that belongs to one group."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def set(self, key: str, value: bytes) -> None:
        self._store.set(self._prefix + key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        return self._store.get(self._prefix + key, timeout_s)


class DataPlane:
    """The backends of one world, by process set."""

    def __init__(
        self, name: str, backend: type[Backend], neighbourhood: Neighbourhood, comm: Any = None
    ) -> None:
        """Connects the world; blocks until all its ranks call it.

        ``comm`` is the communicator that the program gave to ``init``.

        Raises:
            InitError: they cannot be connected.
        """
        self.name = name
        self._class = backend
        self._neighbourhood = neighbourhood
        self._connected = 0
        self._adapters: dict[int, EngineAdapter] = {}
        self.world = self.connect(0, range(neighbourhood.size), comm)

    def connect(
        self, process_set_id: int, ranks: Sequence[int], comm: Any = None
    ) -> EngineAdapter | None:
        """Connect a process set. All ranks of the world call it; None for ranks outside the set.

        Blocks until all members call it. A set of one rank needs no connection.

        Raises:
            InitError: the members cannot be connected.
        """
        self._connected += 1
        if self._neighbourhood.rank not in ranks or len(ranks) == 1:
            return None
        group = Group(
            process_set_id=process_set_id,
            ranks=tuple(ranks),
            rank=list(ranks).index(self._neighbourhood.rank),
            world=self._adapters[0].backend if process_set_id else None,
            comm=comm,
            store=self._store(process_set_id),
            address=self._neighbourhood.address,
            timeout_s=self._neighbourhood.timeout_s,
        )
        self._adapters[process_set_id] = EngineAdapter(self.name, self._open(group))
        return self._adapters[process_set_id]

    def disconnect(self, process_set_id: int) -> None:
        """Close the backend of a removed set, which has no collective in progress."""
        adapter = self._adapters.pop(process_set_id, None)
        if adapter is not None:
            _close(adapter)

    def close(self) -> None:
        """Close the backends of all sets."""
        for process_set_id in sorted(self._adapters, reverse=True):
            self.disconnect(process_set_id)

    def _store(self, process_set_id: int) -> GroupStore:
        # The id of a removed set may be used again.
        prefix = f"plane/{self._neighbourhood.scope}{process_set_id}/{self._connected}/"
        return _ScopedStore(self._neighbourhood.store, prefix)

    def _open(self, group: Group) -> Backend:
        try:
            return self._class(group)
        except InitError:
            raise
        except Exception as error:
            raise InitError(
                f"init: {self.name} cannot connect the ranks {list(group.ranks)}: "
                f"{type(error).__name__}: {error}"
            ) from error


def _close(adapter: EngineAdapter) -> None:
    try:
        adapter.backend.close()
    except Exception as error:
        _log.warning("%s: close failed: %s: %s", adapter.name, type(error).__name__, error)
