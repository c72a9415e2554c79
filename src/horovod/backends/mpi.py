"""MPI as a data plane, through mpi4py and the library that it loads.

Every process set has its own communicator, so messages of the program's own use of mpi4py are apart
from Horovod's.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from numpy.typing import NDArray

from horovod.backends.protocol import Backend, Bytes, Group, Request
from horovod.core.base import mpi_library
from horovod.errors import InitError

# Held around each call if MPI supports one thread at a time only.
_one_at_a_time = threading.Lock()
# Unfinished requests of failed worlds. MPI cannot cancel a collective: its next call would use the
# freed memory of the request. So this process must make no further call.
_given_up: list[Request] = []


class _Request:
    def __init__(self, request: Any, guard: AbstractContextManager[Any]) -> None:
        self._request = request
        self._guard = guard

    def test(self) -> bool:
        with self._guard:
            return bool(self._request.Test())


class MpiBackend(Backend):
    """The collectives of one communicator."""

    dtypes = frozenset({"uint8", "int8", "uint16", "int16", "int32", "int64", "float32", "float64"})

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        mpi = self._mpi = mpi_library.load()
        self._guard: AbstractContextManager[Any] = (
            nullcontext() if mpi_library.threads_supported() else _one_at_a_time
        )
        self._operations = {"sum": mpi.SUM, "min": mpi.MIN, "max": mpi.MAX, "product": mpi.PROD}
        self._last: Request | None = None
        with self._guard:
            self.comm = self._connect(group)

    @classmethod
    def why_unavailable(cls) -> str | None:
        return mpi_library.why_not_built()

    def allreduce(self, array: NDArray[Any], reduction: str) -> Request:
        operation = self._operations[reduction]
        with self._guard:
            return self._began(self.comm.Iallreduce(self._mpi.IN_PLACE, array, operation))

    def broadcast(self, array: Bytes, root: int) -> Request:
        with self._guard:
            return self._began(self.comm.Ibcast(array, root))

    def allgather(self, given: Bytes, taken: Bytes, sizes: Sequence[int]) -> Request:
        with self._guard:
            return self._began(self.comm.Iallgatherv(given, [taken, sizes]))

    def alltoall(
        self, given: Bytes, given_sizes: Sequence[int], taken: Bytes, taken_sizes: Sequence[int]
    ) -> Request:
        with self._guard:
            return self._began(self.comm.Ialltoallv([given, given_sizes], [taken, taken_sizes]))

    def barrier(self) -> Request:
        with self._guard:
            return self._began(self.comm.Ibarrier())

    def close(self) -> None:
        """Free the communicator, unless a collective is unfinished after a failure."""
        if self._mpi.Is_finalized():
            return
        if self._last is not None and not self._last.test():
            _given_up.append(self._last)
            return
        with self._guard:
            self.comm.Free()

    def _began(self, request: Any) -> Request:
        self._last = _Request(request, self._guard)
        return self._last

    def _connect(self, group: Group) -> Any:
        if _given_up:
            raise InitError(
                "init: HOROVOD_CPU_OPERATIONS=mpi: an earlier world of this process failed in the "
                "middle of a collective, which MPI cannot cancel; start a new process"
            )
        if group.comm is not None:
            return group.comm.Split(0, group.rank)  # its ranks may have another order
        if group.world is None:
            return self._all_processes(group)
        assert isinstance(group.world, MpiBackend)
        parent = group.world.comm
        return parent.Create_group(parent.Get_group().Incl(group.ranks), group.process_set_id)

    def _all_processes(self, group: Group) -> Any:
        world = self._mpi.COMM_WORLD
        if world.Get_size() != group.size:
            raise InitError(
                f"init: HOROVOD_CPU_OPERATIONS=mpi: MPI knows {world.Get_size()} processes, "
                f"this world has {group.size}; start them with mpirun or horovodrun --mpi"
            )
        return world.Split(0, group.rank)
